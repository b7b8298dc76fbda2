package command

import (
	"github.com/spf13/cobra"
)

func (p *program) demo() *cobra.Command {
	return &cobra.Command{Use: "demo", RunE: p.run(func(cmd *cobra.Command, _ []string) error { return nil })}
}

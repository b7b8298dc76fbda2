//go:build !unix

package command

import "github.com/spf13/cobra"

// unixCommands returns none: see run.go.
func (p *program) unixCommands() []*cobra.Command { return nil }

func watchdog() {}

package command

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

func (p *program) show() *cobra.Command {
	var s selection
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show KEY | --id ID | --glob PATTERN | --digest DIGEST",
		Short: "Show what the store knows about a key",
		Long: `Shows the holder of a key, since when it holds the key and how much of its lease
is left; an abandoned attempt; and the record that a finished holder left. The
key of an HTTP request is http:SCOPE:KEY, and that of a call of a tool (MCP) is
mcp:SCOPE:KEY. SCOPE stands for the client and the host, and KEY is the key that
the client chose.

Of a run with "dibs run --once-per" it shows how it ended, with which exit code,
on which host, and when it began.

Also shows the places in the queue, in order. A reserved place is one that was
taken before its job came. While the key is free it blocks others for as long as
the line says, and then gives way. "waiters" counts the callers that wait now,
and "reserved" the places whose jobs have not come. "jobs" names the jobs that
run and those that wait in a worker, with its host. Each place has an ID. "dibs
release --place ID" removes a reserved place.

Logs name a key by its digest. --digest finds the key. It reads all keys of the
store, because a digest cannot be looked up.

Exits with 1 if the store has no such key.`,
		Example: `  dibs show 'http:GQ0p0hV7Hq3b8QkHn1oSLg:order-17'
  dibs show --glob '*:order-17' --json
  dibs show --digest e3acbc87875c
  dibs show urn:dibs:claim:q7k2v5m3x4zabcde`,
		Args: oneKey,
		RunE: p.run(func(cmd *cobra.Command, args []string) error {
			if err := s.read(cmd.Flags(), args); err != nil {
				return err
			}
			return p.look(cmd.Context(), func(opened *anystore.Store, in store.Inspector) error {
				found, err := p.find(cmd.Context(), in, &s, cmd.Flags(), true)
				if errors.Is(err, errAbsent) {
					err = errors.Join(p.nameStore(opened), err)
				}
				if err != nil {
					return err
				}
				return p.writeEntries(found, asJSON)
			})
		}),
	}
	s.bind(cmd.Flags())
	s.bindGlob(cmd.Flags())
	cmd.Flags().StringVar(&s.digest, "digest", "", "the `DIGEST` of a key, as in logs; reads all keys")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	p.storeFlags(cmd.Flags())
	p.completeKeys(cmd, conditions...)
	return cmd
}

// writeEntries writes entries for programs, or for people with an empty line between them.
func (p *program) writeEntries(all []store.Entry, asJSON bool) error {
	now := time.Now()
	for i, e := range all {
		var err error
		if asJSON {
			err = writeLines(p.env.Stdout, entryLines(e, now))
		} else {
			if i > 0 {
				fmt.Fprintln(p.env.Stdout)
			}
			err = writeText(p.env.Stdout, p.painter(p.env.Stdout), e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

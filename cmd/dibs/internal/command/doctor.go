package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/stores"
)

// errDangerous ends the doctor if it found something dangerous. It has no message, because
// the findings are printed already.
var errDangerous = &failure{is: errors.New("dangerous")}

// findingJSON is a finding for programs.
type findingJSON struct {
	Name     string        `json:"name"`
	Severity dibs.Severity `json:"severity"`
	What     string        `json:"what"`
	Cure     string        `json:"cure"`
}

// lookJSON describes the store for programs.
type lookJSON struct {
	Store       string `json:"store"`
	Version     string `json:"version"`
	RoundTripUS int64  `json:"round_trip_us"`
	Findings    int    `json:"findings"`
}

func (p *program) doctor() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the set-up of the store, before something is lost",
		Long: `Checks whether the store's backend is set up for what dibs promises. Prints what
it finds, the worst first, each with its cure:

  dangerous   a promise does not hold, or will not hold when something ordinary
              happens: memory fills up, the server restarts
  advice      a promise depends on something that need not happen
  unchecked   the check was not possible

Changes nothing. The last line has the backend, its version and the median time
of a question to it. Ends with 1 if something is dangerous. --json prints one
object a line: the findings, then the backend.`,
		Example: `  dibs doctor
  dibs doctor --store postgres://app@db.internal/app
  dibs doctor --json --store redis://cache.internal | jq -r 'select(.cure) | .what'`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			return p.examine(cmd.Context(), asJSON)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	p.storeFlags(cmd.Flags())
	return cmd
}

func (p *program) examine(ctx context.Context, asJSON bool) error {
	store, err := stores.OpenFound(ctx, p.storeOf())
	if err != nil {
		return err
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	took, err := roundTrip(ctx, store)
	if err != nil {
		return &dibs.StoreError{Op: "look", Err: err}
	}
	version, err := store.Version(ctx)
	if err != nil {
		return &dibs.StoreError{Op: "version", Err: err}
	}
	found, err := store.Check(ctx)
	if err != nil {
		return &dibs.StoreError{Op: "check", Err: err}
	}
	look := lookJSON{Store: store.String(), Version: version, RoundTripUS: took.Microseconds(), Findings: len(found)}
	if asJSON {
		err = writeFindingsJSON(p.env.Stdout, found, look)
	} else {
		err = writeFindings(p.env.Stdout, found, look, took)
	}
	if err == nil && slices.ContainsFunc(found, func(f dibs.Finding) bool { return f.Severity == dibs.SeverityDangerous }) {
		return errDangerous
	}
	return err
}

// questions is how many questions the doctor measures.
const questions = 9

// roundTrip returns the median time of a question.
func roundTrip(ctx context.Context, store *stores.Store) (time.Duration, error) {
	took := make([]time.Duration, questions)
	for i := range took {
		began := time.Now()
		if err := store.Probe(ctx); err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[questions/2], nil
}

func writeFindingsJSON(w io.Writer, found []dibs.Finding, look lookJSON) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	for _, f := range found {
		if err := out.Encode(findingJSON(f)); err != nil {
			return err
		}
	}
	return out.Encode(look)
}

func writeFindings(w io.Writer, found []dibs.Finding, look lookJSON, took time.Duration) error {
	var b strings.Builder
	for _, f := range found {
		fmt.Fprintf(&b, "%-10s %s: %s\n           Cure: %s\n", f.Severity, f.Name, quote(f.What), quote(f.Cure))
	}
	if len(found) == 0 {
		b.WriteString("nothing found\n")
	}
	fmt.Fprintf(&b, "looked at  %s, %s; a question takes %s\n", quote(look.Store), quote(look.Version), took.Round(time.Microsecond))
	_, err := io.WriteString(w, b.String())
	return err
}

package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

// errDangerous ends the doctor if it found something dangerous. It has no message, because
// the findings are printed already.
var errDangerous = &failure{is: errors.New("dangerous")}

// findingJSON is a finding for programs.
type findingJSON struct {
	Name     string         `json:"name"`
	Severity store.Severity `json:"severity"`
	What     string         `json:"what"`
	Cure     string         `json:"cure"`
}

// lookJSON describes the store for programs.
type lookJSON struct {
	Store       string `json:"store"`
	Version     string `json:"version"`
	RoundTripUS int64  `json:"round_trip_us"`
	Findings    int    `json:"findings"`
}

func (p *program) doctor() *cobra.Command {
	var asJSON, report bool
	var file string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the set-up of the store and of a proxy",
		Long: `Checks whether the store's backend is set up for what dibs promises. With
--config it checks the configuration of a proxy, too, and the store which that
proxy uses. Prints what it finds, the worst first, each with its cure:

  dangerous   a promise does not hold, or will not hold when something ordinary
              happens: memory fills up, the server restarts
  advice      a promise depends on something that need not happen
  unchecked   the check was not possible

Changes nothing. The last line has the backend, its version and the median time
of a question to it. While no program has made the file of a SQLite store yet,
its place is checked. Exits with 1 if something is dangerous, and with 64 if the
configuration has an error. --json prints one object a line: the findings, then
the backend.

--report prints what an issue about dibs needs and anybody may read: versions,
the kind of the store, the names of the findings, and with --config the settings
of the proxy. It has no address, no password and no path.`,
		Example: `  dibs doctor
  dibs doctor --store postgres://app@db.internal/app
  dibs doctor --config /etc/dibs/proxy.yaml
  dibs doctor --json --store redis://cache.internal | jq -r 'select(.cure) | .what'
  dibs doctor --report --config /etc/dibs/proxy.yaml`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			if report && asJSON {
				return usagef("--report and --json exclude each other: a report is text")
			}
			found, settings, err := p.checkSettings(file, cmd.Flags())
			if err != nil {
				return err
			}
			write := p.painter(p.env.Stdout).writeFindings
			switch {
			case report:
				write = func(w io.Writer, found []store.Finding, look *lookJSON) error {
					return p.writeReport(w, settings, found, look)
				}
			case asJSON:
				write = writeFindingsJSON
			}
			return p.examine(cmd.Context(), found, write)
		}),
	}
	cmd.Flags().StringVar(&file, "config", "", "the YAML `FILE` of a proxy to check too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&report, "report", false, "print what an issue about dibs needs, without addresses and secrets")
	p.storeFlag(cmd.Flags())
	return cmd
}

// checkSettings returns what it finds in the flags and in the configuration of a proxy, unless
// file is "", and the lines of a report about that. It takes the store of the proxy.
func (p *program) checkSettings(file string, flags *pflag.FlagSet) (found []store.Finding, settings []string, err error) {
	if _, secret := anystore.Show(p.storeURL); secret && anystore.CheckURL(p.storeURL) == nil {
		found = append(found, store.Finding{
			Name: "password", Severity: store.SeverityAdvice,
			What: "The URL of the store is an argument and has a password: every user of this host can see it.",
			Cure: "Set the environment variable DIBS_STORE instead.",
		})
	}
	if file == "" {
		return found, nil, nil
	}
	c, err := p.load(file, flags)
	if err != nil {
		return nil, nil, err
	}
	var secrets []string
	if name := p.env.Getenv("DIBS_STORE_FILE"); name != "" {
		secrets = append(secrets, name)
	}
	if p.namedStore() == "" && c.Store != "" {
		p.storeURL = c.Store
		if _, secret := anystore.Show(c.Store); secret {
			secrets = append(secrets, file)
		}
	}
	return append(found, c.Check(time.Now(), secrets...)...), c.Report(), nil
}

// examine asks the store, and writes what it finds with what was found before, even if the store
// does not answer.
func (p *program) examine(ctx context.Context, found []store.Finding, write func(io.Writer, []store.Finding, *lookJSON) error) error {
	more, look, failed := p.ask(ctx)
	found = append(found, more...)
	slices.SortStableFunc(found, store.Finding.Compare)
	if look != nil {
		look.Findings = len(found)
	}
	if err := cmp.Or(write(p.env.Stdout, found, look), failed); err != nil {
		return err
	}
	if slices.ContainsFunc(found, func(f store.Finding) bool { return f.Severity == store.SeverityDangerous }) {
		return errDangerous
	}
	return nil
}

// ask returns what the store finds, and how it was looked at.
func (p *program) ask(ctx context.Context) ([]store.Finding, *lookJSON, error) {
	url, err := p.storeOf()
	if err != nil {
		return nil, nil, err
	}
	if found, ok := anystore.CheckPlace(url); ok {
		return found, nil, nil
	}
	store, err := anystore.Open(ctx, url, anystore.ToCheck)
	if err != nil {
		return nil, nil, err
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	took, err := roundTrip(ctx, store)
	if err != nil {
		return nil, nil, &dibs.StoreError{Op: "look", Err: err}
	}
	version, err := store.Version(ctx)
	if err != nil {
		return nil, nil, &dibs.StoreError{Op: "version", Err: err}
	}
	found, err := store.Check(ctx)
	if err != nil {
		return nil, nil, &dibs.StoreError{Op: "check", Err: err}
	}
	return found, &lookJSON{Store: store.String(), Version: version, RoundTripUS: took.Microseconds()}, nil
}

// questions is how many questions the doctor measures.
const questions = 9

// roundTrip returns the median time of a question.
func roundTrip(ctx context.Context, store *anystore.Store) (time.Duration, error) {
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

// writeFindingsJSON writes findings, and how the store was looked at, unless look is nil.
func writeFindingsJSON(w io.Writer, found []store.Finding, look *lookJSON) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	for _, f := range found {
		if err := out.Encode(findingJSON(f)); err != nil {
			return err
		}
	}
	if look == nil {
		return nil
	}
	return out.Encode(look)
}

// writeFindings is writeFindingsJSON as text.
func (paint painter) writeFindings(w io.Writer, found []store.Finding, look *lookJSON) error {
	var b strings.Builder
	for _, f := range found {
		fmt.Fprintf(&b, "%s %s: %s\n           Cure: %s\n", paint.paint(colourOfSeverity(f.Severity), fmt.Sprintf("%-10s", f.Severity)), f.Name, quote(f.What), quote(f.Cure))
	}
	if look != nil {
		if len(found) == 0 {
			b.WriteString("nothing found\n")
		}
		took := time.Duration(look.RoundTripUS) * time.Microsecond
		fmt.Fprintf(&b, "looked at  %s, %s; a question takes %s\n", quote(look.Store), quote(look.Version), took)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

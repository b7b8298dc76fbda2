package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

// writeReport writes what an issue about dibs needs and anybody may read. Of a URL it has the scheme,
// of a finding the name, of a setting only what can be no secret.
func (p *program) writeReport(w io.Writer, settings []string, found []store.Finding, look *lookJSON) error {
	var b strings.Builder
	fmt.Fprintf(&b, "dibs      %s\n", version())
	shown, _ := anystore.Show(p.namedStore())
	kind, _, named := strings.Cut(shown, ":")
	switch {
	case look != nil:
		fmt.Fprintf(&b, "store     %s, %s\n", kind, quote(look.Version))
	case named:
		fmt.Fprintf(&b, "store     %s, which was not asked or did not answer\n", kind)
	default:
		b.WriteString("store     none\n")
	}
	for _, f := range found {
		fmt.Fprintf(&b, "%-10s%s\n", f.Severity, f.Name)
	}
	for _, s := range settings {
		fmt.Fprintf(&b, "setting   %s\n", s)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

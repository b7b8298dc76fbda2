package proxy

import (
	"fmt"
	"os"
	"slices"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/store"
)

// checkTemporary returns an error if a body of a guarded request may need a temporary file, and
// the folder of temporary files cannot be written. Otherwise all requests with such a body would
// be refused for as long as the proxy runs.
func (c *Config) checkTemporary() error {
	spills := func(r Route) bool {
		return r.MaxBody > idempotency.MaxMemory
	}
	if !slices.ContainsFunc(c.guarded(), spills) {
		return nil
	}
	file, err := os.CreateTemp("", "dibs-body-")
	if err != nil {
		return fmt.Errorf("max-body: bodies of more than 1MiB are kept in temporary files, and none can be made: %w; mount a folder there, or name one in TMPDIR, or set max-body to 1MiB", err)
	}
	file.Close()
	return os.Remove(file.Name())
}

// checkFolder is checkTemporary as a finding.
func (c *Config) checkFolder() []store.Finding {
	err := c.checkTemporary()
	if err == nil {
		return nil
	}
	return []store.Finding{{
		Name: "temporary", Severity: store.SeverityDangerous,
		What: fmt.Sprintf("The proxy does not start: %v.", err),
		Cure: "Mount a folder that the proxy's user can write, such as a tmpfs at /tmp, or name one in TMPDIR.",
	}}
}

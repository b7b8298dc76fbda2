package dibs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestErrorsNameTheirType: what a caller gets has the method that OpenTelemetry's packages look for,
// if the error is wrapped, too.
func TestErrorsNameTheirType(t *testing.T) {
	for want, err := range map[string]error{
		"held": &dibs.HeldError{}, "done": &dibs.DoneError{}, "unknown_outcome": &dibs.UnknownError{},
		"mismatch": dibs.ErrMismatch, "full": fmt.Errorf("memory: %w", dibs.ErrFull), "too_large": dibs.ErrTooLarge,
		"busy": &dibs.StoreError{Op: "claim", Err: dibs.ErrBusy}, "lost": dibs.ErrLost, "closed": errors.Join(errNetwork, dibs.ErrClosed),
	} {
		var named interface{ ErrorType() string }
		if !errors.As(err, &named) || named.ErrorType() != want {
			t.Errorf("%v is of the type %v, want %s", err, named, want)
		}
	}
	for err, is := range map[error]error{&dibs.HeldError{}: dibs.ErrHeld, &dibs.DoneError{}: dibs.ErrDone, &dibs.UnknownError{}: dibs.ErrUnknown, dibs.ErrTooLarge: dibs.ErrFull} {
		if !errors.Is(err, is) {
			t.Errorf("%v is not %v", err, is)
		}
	}
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		err := c.Do(t.Context(), "k", func(ctx context.Context) error { return c.TryDo(ctx, "k", func(context.Context) error { return nil }) })
		var named interface{ ErrorType() string }
		if !errors.As(err, &named) || named.ErrorType() != "held" {
			t.Errorf("a held key: %v", err)
		}
	})
}

// TestErrorTypesAreListed: docs/operate/incidents.md lists each type that an error of the core or of a store can
// have in a metric.
func TestErrorTypesAreListed(t *testing.T) {
	page := testkit.ReadFile(t, "docs/operate/incidents.md")
	kinds := map[string]string{} // by the constant's name
	text := testkit.ReadFile(t, "internal/errtype/errtype.go")
	for _, m := range regexp.MustCompile(`(?m)^\t([A-Z]\w+) += "(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		kinds["errtype."+m[1]] = m[2]
	}
	made := regexp.MustCompile(`errtype\.New\(("\w+"|errtype\.\w+)`)
	found := 0
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, m := range made.FindAllStringSubmatch(string(source), -1) {
			found++
			kind := strings.Trim(m[1], `"`)
			if constant, ok := kinds[m[1]]; ok {
				kind = constant
			}
			if !strings.Contains(string(page), "`"+kind+"`") {
				t.Errorf("%s makes an error of the type %s, which docs/operate/incidents.md does not list", name, kind)
			}
		}
		return nil
	})
	if err != nil || found < 40 {
		t.Errorf("%v, and %d errors have a type", err, found)
	}
}

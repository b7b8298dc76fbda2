package idempotency_test

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/idempotency"
)

// A missing handler or function is found when the program starts, not by a request that has its key.
func TestNothingToRun(t *testing.T) {
	for name, call := range map[string]func(){
		"Wrap":     func() { new(idempotency.Middleware).Wrap(nil) },
		"KeyOf":    func() { idempotency.KeyOf(idempotency.KeyHeader("A"), nil) },
		"KeyFirst": func() { idempotency.KeyFirst(nil) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, name) {
					t.Errorf("%s: %q", name, text)
				}
			}()
			call()
		}()
	}
}

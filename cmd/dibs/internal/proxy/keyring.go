package proxy

import (
	"fmt"
	"os"
	"strings"

	"github.com/dibs-go/dibs/cmd/dibs/internal/missing"
	"github.com/dibs-go/dibs/idempotency"
)

// ReadKeyRing reads a key ring from a file, or from the environment variable NAME if source is
// env:NAME. It returns nil, which encrypts nothing, if source is "".
func ReadKeyRing(source string) (*idempotency.KeyRing, error) {
	if source == "" {
		return nil, nil
	}
	name, isVariable := strings.CutPrefix(source, "env:")
	if isVariable {
		text, ok := os.LookupEnv(name)
		if !ok {
			return nil, fmt.Errorf("the environment has no variable %q", name)
		}
		return idempotency.ParseKeyRing(text)
	}
	text, err := os.ReadFile(source)
	if err != nil {
		return nil, missing.File(err, source, `(umask 027; echo "1:$(openssl rand -base64 32)" >FILE)`)
	}
	return idempotency.ParseKeyRing(string(text))
}

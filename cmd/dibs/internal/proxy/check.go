package proxy

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/certificate"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/store"
)

// renewal is how long before its expiry a certificate is reported.
const renewal = 14 * 24 * time.Hour

// judgements are what Check looks for in the policies that guard requests.
var judgements = []struct {
	found   func(*Policy) bool
	finding store.Finding
}{
	{
		func(p *Policy) bool { return slices.Contains(p.Scope, "none") && (p.For == "" || p.For == presetMCP) },
		store.Finding{
			Name: "scope", Severity: store.SeverityAdvice,
			What: "scope is none, so all clients share keys: a client that uses the key of another client gets its answer.",
			Cure: "Name what tells the clients apart, such as scope: credentials.",
		},
	},
	{
		func(p *Policy) bool { return p.KeyRing == "" },
		store.Finding{
			Name: "plaintext", Severity: store.SeverityAdvice,
			What: "Answers are stored in plain text: a program that can read the store can read them.",
			Cure: "Set key-ring, if answers are secret.",
		},
	},
	{
		func(p *Policy) bool { return p.KeyRing != "" && !encrypts(p.ring) },
		store.Finding{
			Name: "plaintext", Severity: store.SeverityAdvice,
			What: "The key ring begins with plaintext, so answers are stored in plain text.",
			Cure: "Move the line plaintext to the end of the ring, when all proxies have the ring.",
		},
	},
	{
		func(p *Policy) bool { return encrypts(p.ring) && acceptsPlaintext(p.ring) },
		store.Finding{
			Name: "plaintext", Severity: store.SeverityAdvice,
			What: "The key ring accepts answers in plain text: a program that can write to the store can forge them.",
			Cure: "Remove the line plaintext from the ring after the longest retention.",
		},
	},
	{
		func(p *Policy) bool { return p.OnStoreFailure == idempotency.FailOpen },
		store.Finding{
			Name: "store-failure", Severity: store.SeverityAdvice,
			What: "on-store-failure is open: while the store does not answer, requests run unguarded, and maybe twice.",
			Cure: "Set on-store-failure to closed, unless a refusal is worse than a second run.",
		},
	},
}

// Check returns what is dangerous or rarely meant in the settings, in any order. secrets are
// further files that other users should not read.
func (c *Config) Check(now time.Time, secrets ...string) []store.Finding {
	var found []store.Finding
	policies := c.guarded()
	for _, j := range judgements {
		var names []string
		for _, r := range policies {
			if j.found(&r.Policy) {
				names = append(names, r.name())
			}
		}
		f := j.finding
		if len(names) == 0 {
			continue
		}
		if len(names) < len(policies) {
			f.What += " This is so for " + strings.Join(names, ", ") + "."
		}
		found = append(found, f)
	}
	if c.Admin == "" {
		found = append(found, store.Finding{
			Name: "admin", Severity: store.SeverityAdvice,
			What: "admin is not set, so there are no metrics and no health checks.",
			Cure: "Set admin: 127.0.0.1:9090.",
		})
	}
	secrets = append(secrets, c.TLSKey)
	for _, r := range policies {
		if !strings.HasPrefix(r.KeyRing, "env:") {
			secrets = append(secrets, r.KeyRing)
		}
	}
	slices.Sort(secrets)
	for _, file := range slices.Compact(secrets) {
		found = append(found, checkSecret(file)...)
	}
	return slices.Concat(found, c.checkFolder(), c.checkExpiry(now))
}

// guarded returns the routes with guarded requests, and the top of the file as a route.
func (c *Config) guarded() []Route {
	all := c.Routes
	if c.Upstream != "" {
		all = append(slices.Clip(all), Route{Policy: c.Policy})
	}
	return slices.DeleteFunc(slices.Clone(all), func(r Route) bool { return !r.Guard })
}

// name names the route in a sentence.
func (r *Route) name() string {
	return cmp.Or(r.Host.text+r.Path.text, "all other requests")
}

// encrypts reports whether the ring encrypts answers.
func encrypts(ring *idempotency.KeyRing) bool {
	_, ok := idempotency.EncryptedWith(ring.Encrypt(dibs.Key{Name: "any"}, dibs.Fingerprint{}, 0, nil))
	return ok
}

// acceptsPlaintext reports whether the ring accepts answers that are not encrypted.
func acceptsPlaintext(ring *idempotency.KeyRing) bool {
	_, err := ring.Decrypt(dibs.Key{Name: "any"}, dibs.Fingerprint{}, nil)
	return err == nil
}

// checkSecret finds a file with a secret that every user of this host may read.
func checkSecret(file string) []store.Finding {
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm()&0o004 == 0 || runtime.GOOS == "windows" { // which has other rights
		return nil
	}
	return []store.Finding{{
		Name: "secret", Severity: store.SeverityAdvice,
		What: fmt.Sprintf("The file %s has a secret, and every user of this host may read it.", file),
		Cure: "chmod o-r " + file + ". In Kubernetes, set defaultMode: 0440 and fsGroup.",
	}}
}

// checkExpiry finds a certificate that has expired, or expires soon.
func (c *Config) checkExpiry(now time.Time) []store.Finding {
	if c.TLSCert == "" {
		return nil
	}
	cert, err := certificate.New(c.TLSCert, c.TLSKey, nil)
	if err != nil {
		return nil // Load reported it
	}
	end := cert.Expires()
	if end.Sub(now) > renewal {
		return nil
	}
	f := store.Finding{
		Name: "certificate", Severity: store.SeverityAdvice,
		What: fmt.Sprintf("The certificate %s expires at %s.", c.TLSCert, end.UTC().Format(time.RFC3339)),
		Cure: "Renew it. The proxy reads the new files by itself.",
	}
	if now.After(end) {
		f.Severity, f.What = store.SeverityDangerous, strings.Replace(f.What, "expires", "expired", 1)
	}
	return []store.Finding{f}
}

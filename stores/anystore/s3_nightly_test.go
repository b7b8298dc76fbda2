//go:build nightly

package anystore

import (
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestBucket: a store in a bucket is used, listed and checked by its URL, and nothing is left.
func TestBucket(t *testing.T) {
	server := servertest.S3(t)
	t.Setenv("AWS_ACCESS_KEY_ID", servertest.S3Access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", servertest.S3Secret)
	url := server.Store("") + "&tick=20ms"
	checkNothingIsLeft(t, url, nil)
	for _, m := range []Mode{ToUse, ToInspect, ToList, ToCheck} {
		s, err := Open(t.Context(), url, m)
		testkit.Must(t, err)
		found, err := s.Check(t.Context())
		testkit.Check(t, err)
		if slices.ContainsFunc(found, func(f store.Finding) bool { return f.Severity == store.SeverityDangerous }) {
			t.Errorf("Check finds %+v", found)
		}
		version, err := s.Version(t.Context())
		if testkit.Check(t, err); !strings.Contains(version, "VERSITYGW") {
			t.Errorf("the version is %q", version)
		}
		testkit.Check(t, s.Close())
	}
	for name, change := range map[string][2]string{"no bucket": {"s3://dibs", "s3://none"}, "no server": {server.Addr(), servertest.Addr(t)}} {
		if _, err := Open(t.Context(), strings.Replace(url, change[0], change[1], 1), ToUse); err == nil {
			t.Errorf("%s: the store is open", name)
		}
	}
}

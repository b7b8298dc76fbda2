package s3_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/casstore/s3"
)

// TestCheck: what S3's documentation answers about the settings of a bucket. No server that the tests can
// run has such rules.
func TestCheck(t *testing.T) {
	rule := func(what string) string {
		return `<LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Rule><ID>a</ID>` + what + `</Rule></LifecycleConfiguration>`
	}
	for name, test := range map[string]struct{ query, answer, want string }{
		"nothing is set":                  {"", "", ""},
		"versions":                        {"versioning", `<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>`, "versioning "},
		"versions of before":              {"versioning", `<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>`, ""},
		"all expires":                     {"lifecycle", rule(`<Filter><Prefix></Prefix></Filter><Status>Enabled</Status><Expiration><Days>7</Days></Expiration>`), "lifecycle "},
		"the prefix expires":              {"lifecycle", rule(`<Filter><And><Prefix>locks/</Prefix><Tag/></And></Filter><Status>Enabled</Status><Expiration><Days>7</Days></Expiration>`), "lifecycle "},
		"a part of it is moved":           {"lifecycle", rule(`<Prefix>locks/k/</Prefix><Status>Enabled</Status><Transition><Days>7</Days><StorageClass>GLACIER</StorageClass></Transition>`), "lifecycle "},
		"another prefix, and a tag":       {"lifecycle", rule(`<Filter><And><Prefix>logs/</Prefix><Tag/></And></Filter><Status>Enabled</Status><Expiration><Days>7</Days></Expiration>`), ""},
		"another prefix expires":          {"lifecycle", rule(`<Filter><Prefix>logs/</Prefix></Filter><Status>Enabled</Status><Expiration><Days>7</Days></Expiration>`), ""},
		"a rule is off":                   {"lifecycle", rule(`<Filter/><Status>Disabled</Status><Expiration><Days>7</Days></Expiration>`), ""},
		"only versions of before expire":  {"lifecycle", rule(`<Filter/><Status>Enabled</Status><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>`), ""},
		"replication":                     {"replication", `<ReplicationConfiguration><Role>r</Role><Rule><Status>Enabled</Status></Rule></ReplicationConfiguration>`, "replication "},
		"the user may not read a setting": {"replication", "<Error><Code>AccessDenied</Code></Error>", "replication "},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case !r.URL.Query().Has(test.query) || test.query == "":
				w.WriteHeader(http.StatusNotFound)
			case test.answer[1] == 'E':
				w.WriteHeader(http.StatusForbidden)
			}
			fmt.Fprint(w, test.answer)
		}))
		kv, err := s3.NewKV(&s3.Options{Bucket: "bucket", Prefix: "locks/", Endpoint: server.URL, Credentials: credentials.NewStaticV4("a", "b", "")})
		testkit.Must(t, err)
		found, err := kv.Check(t.Context())
		testkit.Check(t, err)
		got := ""
		for _, f := range found {
			got += f.Name + " "
		}
		if got != test.want {
			t.Errorf("%s: %q is found, want %q", name, got, test.want)
		}
		testkit.Check(t, kv.Close())
		server.Close()
	}
}

package s3

import (
	"context"
	"encoding/xml"
	"errors"
	"net/http"
	"strings"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// Version returns what the server calls itself: "S3 (AmazonS3)".
func (k *KV) Version(ctx context.Context) (string, error) {
	_, h, err := k.do(ctx, http.MethodGet, "", "list-type=2&max-keys=1", nil, nil)
	if name := h.Get("Server"); name != "" {
		return "S3 (" + name + ")", err
	}
	return "S3", err
}

// settings are what Check reads of the settings of a bucket.
type settings struct {
	Status string // of the versions
	Rule   []struct {
		Status string
		Prefix string
		Filter struct {
			Prefix string
			And    struct{ Prefix string }
		}
		Expiration *struct{}
		Transition *struct{}
	}
}

// Check implements store.Checker. It looks at the settings of the bucket, as far as the user may.
func (k *KV) Check(ctx context.Context) ([]store.Finding, error) {
	var c storekit.Checkup
	asked := map[string]*settings{}
	for _, what := range []string{"versioning", "lifecycle", "replication"} {
		raw, _, err := k.do(ctx, http.MethodGet, "", what+"=", nil, nil)
		s := &settings{}
		if e, ok := errors.AsType[*Error](err); ok && e.Status != http.StatusNotFound && e.Status != http.StatusNotImplemented { // there are none
			c.Unchecked(true, what, "The "+what+" of the bucket cannot be read: "+strings.Trim(strings.TrimPrefix(err.Error(), "s3: "), ".")+".",
				"Let the user read it, or look at it by hand.")
		} else if err != nil && !ok {
			return nil, err
		}
		_ = xml.Unmarshal(raw, s)
		asked[what] = s
	}
	c.Advice(asked["versioning"].Status == "Enabled", "versioning",
		"The bucket keeps versions: each write of the store leaves one, which is paid for.",
		"Use a bucket without versions, or a lifecycle rule that deletes noncurrent versions after a day.")
	for _, r := range asked["lifecycle"].Rule {
		prefix := r.Prefix + r.Filter.Prefix + r.Filter.And.Prefix // one of them is there
		meets := strings.HasPrefix(k.o.Prefix, prefix) || strings.HasPrefix(prefix, k.o.Prefix)
		c.Danger(r.Status == "Enabled" && r.Expiration != nil && meets, "lifecycle",
			"A lifecycle rule deletes objects of the store: a key that is held can be given to another caller.",
			"Exclude the prefix of the store from the rule.")
		c.Danger(r.Status == "Enabled" && r.Transition != nil && meets, "lifecycle",
			"A lifecycle rule moves objects of the store to another class of storage, which may not be readable.",
			"Exclude the prefix of the store from the rule.")
	}
	c.Advice(len(asked["replication"].Rule) > 0, "replication",
		"The bucket is copied to another one, which lags: a key that is held here can be taken there.",
		"Let all processes use one bucket, and never both.")
	return c.Findings(), nil
}

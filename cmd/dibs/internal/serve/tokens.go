package serve

import (
	"net/http"
	"strings"

	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
)

// caller is a credential, and what it has under way.
type caller struct {
	*credential.Credential
	free bool // it may name any namespace: a listener that needs no credential
	load *load
}

// everybody is the caller where no credential is needed.
func everybody(namespace string, bytes int64) *caller {
	return &caller{&credential.Credential{Name: "-", Namespace: namespace, Roles: credential.All}, namespace == "", newLoad(bytes)}
}

// find returns the caller with a token, or nil.
func find(all []*caller, token string) *caller {
	credentials := make([]*credential.Credential, len(all))
	for i, c := range all {
		credentials[i] = c.Credential
	}
	found := credential.Find(credentials, token)
	for _, c := range all {
		if found != nil && c.Credential == found {
			return c
		}
	}
	return nil
}

// bearer returns the token of a call; "" if there is none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

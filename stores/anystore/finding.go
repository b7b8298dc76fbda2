package anystore

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// inMemory is the finding about every store in memory.
var inMemory = store.Finding{
	Name: "memory", Severity: store.SeverityAdvice,
	What: "The store is a part of one process: no other process shares it, and it ends with the process.",
	Cure: "Name a file, sqlite:/PATH, or a database server with --store or DIBS_STORE.",
}

// CheckPlace finds what is wrong with the place of a store's file that no program has made yet, and says
// that there is none. ok is false if there is a file, or the store has none: then Open it, and Check.
func CheckPlace(url string) (found []store.Finding, ok bool) {
	a, err := parse(url)
	f, isFile := a.(sqliteAddress)
	if err != nil || !isFile || exists(f.path) {
		return nil, false
	}
	return append(sqlitestore.CheckPlace(f.path), store.Finding{
		Name: "file", Severity: store.SeverityUnchecked,
		What: fmt.Sprintf("There is no file %s yet: the first dibs run, serve or proxy makes it.", f.path),
		Cure: "Run dibs doctor again after that. If one runs already, name its store with --store or DIBS_STORE.",
	}), true
}

// mayCreate is the finding about a user of a SQL database with more rights than the store needs.
var mayCreate = store.Finding{
	Name: "rights", Severity: store.SeverityAdvice,
	What: "The user of the store may create tables. Only dibs migrate needs this right.",
	Cure: "Run dibs migrate as the owner of the tables, and all else as a user with the rights that the README of the store lists.",
}

// unencrypted returns the finding about connections without TLS, unless all hosts are this host.
// A host may have a port, or be a socket's path.
func unencrypted(cure string, hosts ...string) []store.Finding {
	hosts = slices.DeleteFunc(hosts, isHere)
	if len(hosts) == 0 {
		return nil
	}
	return []store.Finding{{
		Name: "encryption", Severity: store.SeverityAdvice,
		What: fmt.Sprintf("Connections to %s may be without TLS: the network in between can read the password and the stored answers.", strings.Join(slices.Compact(hosts), ", ")),
		Cure: cure,
	}}
}

// isHere reports whether a host is this host.
func isHere(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(host)
	return host == "" || host == "localhost" || host[0] == '/' || err == nil && ip.IsLoopback()
}

package anystore

import (
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestEncryption: connections to another host that may be without TLS are found.
func TestEncryption(t *testing.T) {
	for url, hosts := range map[string]string{
		"redis://:secret@cache.internal":                            "cache.internal:6379",
		"redis+cluster://a,b:7000?prefix=p":                         "a:6379, b:7000",
		"redis+sentinel://10.0.0.1,127.0.0.1/main":                  "10.0.0.1:26379",
		"rediss://cache.internal/2":                                 "",
		"redis://127.0.0.1:6379/2":                                  "",
		"redis://[::1]":                                             "",
		"redis+unix:///run/redis.sock":                              "",
		"postgres://app:secret@db.internal/app":                     "db.internal",
		"postgres://app@db.internal/app?sslmode=disable":            "db.internal",
		"postgres://app@db.internal/app?sslmode=verify-full":        "",
		"postgres://app@localhost/app?sslmode=disable":              "",
		"postgres:///app?host=/run/postgresql":                      "",
		"postgres://app@a,b/app?sslmode=disable":                    "a, b",
		"mysql://app:secret@db.internal/app":                        "db.internal:3306",
		"mysql://app@db.internal/app?tls=preferred":                 "db.internal:3306",
		"mysql://app@db.internal/app?tls=true":                      "",
		"mysql://app@db.internal/app?socket=/run/mysqld/mysql.sock": "",
		"mysql://app@/app?socket=/run/mysqld/mysql.sock":            "",
		"mariadb://app@127.0.0.1:3307/app":                          "",
	} {
		a, err := parse(url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		found := a.(interface{ checkTLS() []store.Finding }).checkTLS()
		if hosts == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || hosts == "" || !strings.HasPrefix(found[0].What, "Connections to "+hosts+" may be") || found[0].Cure == "" {
			t.Errorf("%s: found %+v, want %q", url, found, hosts)
		}
	}
}

// TestRights: a user that may create tables is found, and no other user.
func TestRights(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
		owner := server.URL() + "&schema=own"
		server.Query("CREATE SCHEMA own")
		mayCreate := checkRights(t, owner)
		server.Query("CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA own TO app; GRANT ALL ON ALL TABLES IN SCHEMA own TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA own TO app")
		app := strings.Replace(owner, "postgres@", "app@", 1)
		if !mayCreate || checkRights(t, app) {
			t.Error("want the owner and not the application")
		}
	})
	t.Run("mariadb", func(t *testing.T) {
		checkRightsOn(t, servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true}))
	})
}

// checkRightsOn is TestRights on a MariaDB or MySQL server.
func checkRightsOn(t *testing.T, server *servertest.MariaDBServer) {
	t.Helper()
	mayCreate := checkRights(t, server.URL())
	url := func(user string) string { return strings.Replace(server.URL(), "root@", user+":secret@", 1) }
	for user, rights := range map[string]string{"app": "SELECT, INSERT, UPDATE, DELETE", "creator": "SELECT, INSERT, UPDATE, DELETE, CREATE"} {
		server.Query("CREATE USER " + user + "@'127.0.0.1' IDENTIFIED BY 'secret'")
		server.Query("GRANT " + rights + " ON `app`.* TO " + user + "@'127.0.0.1'")
	}
	if !mayCreate || checkRights(t, url("app")) || !checkRights(t, url("creator")) {
		t.Error("want root and creator, and not app")
	}
}

// checkRights reports whether Check finds that the user of the URL may create tables.
func checkRights(t *testing.T, url string) bool {
	t.Helper()
	found, err := openStore(t, url).Check(t.Context())
	testkit.Must(t, err)
	return slices.ContainsFunc(found, func(f store.Finding) bool { return f.Name == "rights" && f.Severity == store.SeverityAdvice })
}

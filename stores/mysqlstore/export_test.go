package mysqlstore

import (
	"strings"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// NewDatabase returns the URL and the DSN of a database for one test.
func NewDatabase() (url, dsn string) {
	name := testkit.Own()
	mariadb().Query("CREATE DATABASE " + name)
	at := func(where string) string { return strings.Replace(where, "/app", "/"+name, 1) }
	return at(mariadb().URL()), at(mariadb().DSN())
}

package main

import (
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// connections is how many connections a client may open.
const connections = 64

// pooled starts a PostgreSQL behind a PgBouncer in transaction mode.
func pooled(owner servertest.Owner) *fault.Target {
	s := servertest.Postgres(owner, &servertest.PostgresOptions{NoSync: true, MaxConnections: connections})
	return &fault.Target{URL: servertest.PgBouncer(owner, s, nil).URL()}
}

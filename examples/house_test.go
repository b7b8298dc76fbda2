package examples

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of the examples: what they share is written once, and each imports the packages
// of its subject.
func TestHouse(t *testing.T) {
	const (
		root     = house.Root
		database = root + "/examples/internal/database"
		crowd    = root + "/examples/internal/crowd"
		crash    = root + "/examples/internal/crash"
	)
	house.Check(t, []house.Room{
		{Dir: ".", Tests: []string{
			root + "/internal/failpoint", root + "/internal/house", root + "/internal/servertest",
			"connectrpc.com/connect", "google.golang.org/grpc/...", "google.golang.org/protobuf/...",
		}},
		{Dir: "conversation", Imports: []string{database, crowd, root, root + "/jobs"}},
		{Dir: "counter", Imports: []string{database, crowd, root + "/sqllock"}},
		{Dir: "invoice-number", Imports: []string{database, crowd, root + "/sqllock"}},
		{Dir: "lesson-session", Imports: []string{database, crowd, root}},
		{Dir: "payments", Imports: []string{database, crash, root, root + "/idempotency"}},
		{Dir: "redelivery", Imports: []string{
			database, crowd, crash, root, root + "/jobs", "github.com/nats-io/nats-server/v2/server", "github.com/nats-io/nats.go/...",
		}},
		{Dir: "internal/crowd"},
		{Dir: "internal/crash"},
		{Dir: "internal/database", Imports: []string{
			root, root + "/pgstore", root + "/sqlitestore", root + "/sqllock", "github.com/jackc/pgx/v5/...",
		}},
	})
}

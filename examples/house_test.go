package examples

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of the examples: databases, concurrent callers and crashes are written once, and
// each example imports only what it shows.
func TestHouse(t *testing.T) {
	const (
		root       = house.Root
		database   = root + "/examples/internal/database"
		concurrent = root + "/examples/internal/concurrent"
		crash      = root + "/examples/internal/crash"
	)
	house.Check(t, []house.Room{
		{Dir: ".", Tests: []string{
			root, root + "/examples/frameworks", root + "/idempotency", root + "/stores/memstore", root + "/stores/pgstore",
			root + "/internal/prove/failpoint", root + "/internal/prove/house", root + "/internal/prove/servertest",
			"github.com/jackc/pgx/v5/...", "gorm.io/...",
			"connectrpc.com/connect", "google.golang.org/grpc/...", "google.golang.org/protobuf/...",
		}},
		{Dir: "agents", Imports: []string{"github.com/modelcontextprotocol/go-sdk/mcp"}, Tests: []string{"github.com/modelcontextprotocol/go-sdk/jsonrpc", root + "/internal/prove/servertest"}},
		{Dir: "conversation", Imports: []string{database, concurrent, root, root + "/jobs"}},
		{Dir: "counter", Imports: []string{database, concurrent, root + "/sqllock"}},
		{Dir: "frameworks", Imports: []string{
			root + "/idempotency", root + "/stores/pgstore", "github.com/jackc/pgx/v5",
			"github.com/gin-gonic/gin", "github.com/go-chi/chi/v5", "github.com/labstack/echo/v4", "gorm.io/gorm",
		}},
		{Dir: "invoice-number", Imports: []string{database, concurrent, root + "/sqllock"}},
		{Dir: "invoices", Imports: []string{root}, Tests: []string{root + "/stores/memstore"}},
		{Dir: "lesson-session", Imports: []string{database, concurrent, root}},
		{Dir: "payment-provider", Imports: []string{root, root + "/idempotency", root + "/stores/memstore"}},
		{Dir: "payments", Imports: []string{database, crash, root, root + "/idempotency", root + "/idempotency/retry"}},
		{Dir: "redelivery", Imports: []string{
			database, concurrent, crash, root, root + "/jobs", "github.com/nats-io/nats-server/v2/server", "github.com/nats-io/nats.go/...",
		}},
		{Dir: "stripe", Imports: []string{database, root, root + "/idempotency"}, Tests: []string{root + "/idempotency/conform", root + "/stores/memstore"}},
		{Dir: "internal/concurrent"},
		{Dir: "internal/crash"},
		{Dir: "internal/database", Imports: []string{
			root, root + "/stores/pgstore", root + "/stores/sqlitestore", root + "/sqllock", "github.com/jackc/pgx/v5/...",
		}},
	})
}

package proof_test

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of the proofs, which may know everything but their benchmarks: those know
// the peers too, and are a module of their own.
func TestHouse(t *testing.T) {
	const (
		root = house.Root
		unix = "golang.org/x/sys/unix"
	)
	house.Check(t, []house.Room{
		{Dir: ".", Tests: []string{root + "/internal/house"}},
		{Dir: "history", Imports: []string{root + "/store", unix}, Tests: []string{root, root + "/memstore"}},
		{Dir: "check", Imports: []string{root + "/store", root + "/proof/history", "github.com/anishathalye/porcupine"}},
		{Dir: "fault", Imports: []string{
			root + "/internal/pace", root + "/internal/wire", root + "/pgstore", root + "/mysqlstore", unix,
			"github.com/redis/rueidis", "github.com/jackc/pgx/v5", "github.com/go-sql-driver/mysql", "modernc.org/sqlite",
		}, Tests: []string{
			root + "/proof/target", root + "/internal/failpoint", root + "/internal/servertest", root + "/stores",
		}},
		{Dir: "target", Imports: []string{root + "/internal/wire", root + "/proof/fault", root + "/internal/servertest", unix}},
		{Dir: "browser", Tests: []string{
			root + "/store", root + "/memstore", root + "/page", root + "/internal/servertest",
			"github.com/chromedp/chromedp", "github.com/chromedp/chromedp/kb", "github.com/chromedp/cdproto/emulation", "github.com/chromedp/cdproto/page", "github.com/chromedp/cdproto/runtime",
		}},
		{
			Dir:     "torture",
			Imports: []string{root, root + "/store", root + "/stores", root + "/internal/pace", root + "/internal/wire", root + "/proof/check", root + "/proof/fault", root + "/proof/history"},
			Tests:   []string{root + "/proof/target"},
		},
		{Dir: "sim", Imports: []string{root, root + "/store", root + "/jobs", root + "/memstore", root + "/internal/pace", root + "/proof/history"}, Tests: []string{root + "/proof/check"}},
	})
}

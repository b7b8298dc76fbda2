package sqllock

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// TestReadme: what the README says of is there, and it is short.
func TestReadme(t *testing.T) {
	t.Parallel()
	house.Readme(t, 150,
		"`Advisory`", "`LockTx`", "`RubyKey`", "`Named`", "`Row`", "`Sequence`", "`FenceCheck`", "`Transact`",
		"`ErrDeadlock`", "`ErrIsolation`", "`ErrPooler`", "`ErrServer`",
	)
}

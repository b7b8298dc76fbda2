package casstore

import (
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// body is all that there is of a key, as JSON.
type body struct {
	Row       engine.Row       `json:",omitzero"`
	Leases    []engine.Lease   `json:",omitempty"`
	Places    []engine.Place   `json:",omitempty"`
	Data      []byte           `json:",omitempty"` // of the record
	Progress  map[int64][]byte `json:",omitempty"` // under the fences
	FreeSince int64            `json:",omitzero"`
	// Nonce makes two bodies differ, because some engines take a digest for the version.
	Nonce string `json:",omitzero"`

	raw     []byte // as it was read
	version string // of its object; "": there is none
}

// load adds what there is of the key to a batch that knows the time.
func (b *body) load(to *engine.Batch, k string) {
	to.AddRow(k, b.Row)
	for _, l := range b.Leases {
		to.AddLease(k, l)
	}
	for fence := range b.Progress {
		to.AddSaved(k, fence)
	}
	for _, p := range b.Places {
		to.AddPlace(k, true, p)
	}
}

// take takes what there is of the key from a batch. A place lasts for some ticks longer than its
// waiter asked for, and the more of them the more places there are. So most questions of waiters
// find that enough is left, and write nothing. Otherwise their writes would be in the way of those
// of holders.
func (b *body) take(from *engine.Batch, k string, tick time.Duration) {
	was := map[store.Token]int64{}
	for _, p := range b.Places {
		was[p.Token] = p.Ends
	}
	b.Row, b.Leases, b.Places = from.Whole(k)
	more := engine.Micros(tick) * int64(40+len(b.Places)) / 4
	for i := range b.Places {
		switch p, ended := &b.Places[i], was[b.Places[i].Token]; {
		case p.Permits == 0, p.Ends == ended: // it is reserved, or nobody asked
		case p.Ends < ended && ended-p.Ends <= more:
			p.Ends = ended
		default:
			p.Ends += more
		}
	}
}

// step does one step.
func (b *body) step(s *engine.Step) {
	switch s.Does {
	case engine.WriteRecord:
		b.Data = s.Data
	case engine.EraseRecord:
		b.Data = nil
	case engine.WriteProgress:
		if b.Progress == nil {
			b.Progress = map[int64][]byte{}
		}
		b.Progress[s.Fence] = s.Data
	case engine.DropProgress:
		delete(b.Progress, s.Fence)
	case engine.ReadRecord:
		*s.To = b.Data
	case engine.ReadProgress:
		*s.To = b.Progress[s.Fence]
	case engine.ReadSize:
		*s.Size = len(b.Data)
	}
}

// free reports whether there is nothing of the key but its last fence.
func (b *body) free() bool {
	return b.Row.Holder.Token.IsZero() && b.Row.Record.Ends == 0 && len(b.Leases)+len(b.Places)+len(b.Progress) == 0
}

// ends returns when the last lease or place of the key expires; 0 if there is none.
func (b *body) ends() (last int64) {
	last = b.Row.Holder.Ends
	for i := range b.Leases {
		if !b.Leases[i].Abandoned {
			last = max(last, b.Leases[i].Ends)
		}
	}
	for i := range b.Places {
		last = max(last, b.Places[i].Ends)
	}
	return last
}

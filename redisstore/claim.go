package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
)

// Claim implements dibs.Store, in one round trip.
func (s *Store) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	all := s.claims(claims, answers)
	if err := s.run(ctx, all); err != nil {
		return err
	}
	s.refuseBehind(ctx, all, claims, answers)
	s.hearOf(all, claims, answers)
	return nil
}

// claims makes the batches of claims.
func (s *Store) claims(claims []dibs.Claim, answers []dibs.Answer) []*batch {
	all := s.batches(len(claims), verb{
		script: claimScript,
		head:   []string{s.names.sharded(), "", strconv.Itoa(s.options.MaxWaiters)},
		key: func(i int) (dibs.Key, bool) {
			answers[i] = dibs.Answer{Err: claims[i].Validate()}
			return claims[i].Key, answers[i].Err == nil
		},
		answer: func(i int, m *rueidis.RedisMessage) error { return readAnswer(&answers[i], m) },
		lasts:  func(_ int, m *rueidis.RedisMessage) bool { return isGrant(m) },
	})
	w := claimWriter{tells: s.options.Replicas == 0} // or the grant has to wait for them
	for _, b := range all {
		b.call.args[1] = s.ears.channel(b.group)
		for _, i := range b.indexes {
			b.call.args = w.append(b.call.args, &claims[i])
			if s.names.cluster && claims[i].MaxAge > 0 {
				b.call.keys = append(b.call.keys, s.names.record(claims[i].Key))
			}
		}
	}
	return all
}

// hearOf sees to it that those who wait, and whom the server could not tell, are
// listened for from now on.
func (s *Store) hearOf(all []*batch, claims []dibs.Claim, answers []dibs.Answer) {
	for _, b := range all {
		var waiting []dibs.Token
		for _, i := range b.indexes {
			if claims[i].Mode == dibs.Queue && answers[i].State == dibs.Held {
				waiting = append(waiting, claims[i].Token)
			}
		}
		switch heard := b.call.args[1] != ""; {
		case len(waiting) == 0:
		case heard:
			s.ears.waited(b.group)
		default:
			s.ears.listen(b.group, waiting)
		}
	}
}

// The flags of a claim, and how long it is without its owner; see lua/state.lua.
const (
	simple     = 1
	answerable = 2
	tellable   = 4

	claimLen = 107
)

// claimWriter writes claims for lua/claim.lua. What they mostly have in common it
// writes once.
type claimWriter struct {
	tells     bool // grants may be told
	owner     dibs.Owner
	ownerText string
	kept      time.Duration
	keptText  string
}

// append appends the arguments of one claim.
func (w *claimWriter) append(args []string, c *dibs.Claim) []string {
	if w.ownerText == "" || c.Owner != w.owner {
		w.owner, w.ownerText = c.Owner, c.Owner.String()
	}
	b := make([]byte, 0, claimLen+dibs.MaxOwner)
	var flags, atMostOnce byte
	if c.Mode <= dibs.Queue && c.From.IsZero() {
		flags = simple
		if c.MaxAge > 0 {
			flags |= answerable
		}
	}
	memory := dibs.AbandonedMemory
	if c.AtMostOnce {
		atMostOnce = 1
		memory = forever
	} else if w.tells {
		flags |= tellable
	}
	b = append(b, flags, byte(c.Mode), atMostOnce)
	for _, n := range []int{c.Permits, c.Weight} {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	for _, d := range []time.Duration{c.TTL, c.Stay, c.Hold, c.MaxAge} {
		b = binary.BigEndian.AppendUint64(b, micros(d))
	}
	b = append(b, c.Token[:]...)
	b = append(b, c.From[:]...)
	b = append(b, c.Fingerprint[:]...)
	b = append(b, w.ownerText...)
	if kept := min(c.TTL, century) + memory; kept != w.kept {
		w.kept, w.keptText = kept, strconv.FormatInt(kept.Milliseconds()+1, 10)
	}
	return append(args, string(b), w.keptText)
}

// The states as lua/claim.lua answers them.
const (
	failed = iota
	granted
	held
	free
	done
	mismatch
	unknown
)

// isGrant reports whether a claim was granted.
func isGrant(m *rueidis.RedisMessage) bool {
	if m.IsInt64() {
		return true
	}
	f, err := fields(m)
	return err == nil && f.int() == granted
}

// readAnswer reads one claim's answer. The error is one of the call.
func readAnswer(a *dibs.Answer, m *rueidis.RedisMessage) error {
	if m.IsInt64() {
		fence, err := m.AsInt64()
		a.State, a.Fence, a.Attempt = dibs.Granted, uint64(fence), 1
		return err
	}
	f, err := fields(m)
	if err != nil {
		return err
	}
	switch state := f.int(); state {
	case failed:
		why := f.text()
		if why == "" {
			a.Err = fmt.Errorf("%w: too many wait for the key", dibs.ErrFull)
			return nil
		}
		a.Err, err = element(why)
		return err
	case granted:
		a.State = dibs.Granted
		a.Fence, a.Attempt = uint64(f.int()), int(f.int())
		if f.more() {
			a.Progress = f.bytes()
		}
	case held:
		a.State = dibs.Held
		a.Left, a.Ahead, a.Queued = duration(f.int()), int(f.int()), f.int() == 1
		a.Fence = uint64(f.int())
	case free:
		a.State, a.Queued = dibs.Free, f.int() == 1
	case done:
		a.State = dibs.Done
		a.Record.Data = f.bytes()
		a.Record.Age, a.Record.Left = duration(f.int()), duration(f.int())
	case mismatch:
		a.State = dibs.Mismatch
	case unknown:
		a.State, a.ID = dibs.Unknown, f.token().ID()
	default:
		return fmt.Errorf("redisstore: the script answered with state %d", state)
	}
	return f.err
}

// reading goes through the fields of an answer. The first error stays.
type reading struct {
	rest []rueidis.RedisMessage
	err  error
}

func fields(m *rueidis.RedisMessage) (*reading, error) {
	rest, err := m.ToArray()
	if err != nil {
		return nil, fmt.Errorf("redisstore: the script's answer: %w", err)
	}
	return &reading{rest: rest}, nil
}

func (r *reading) more() bool { return len(r.rest) > 0 && !r.rest[0].IsNil() }

func (r *reading) next() *rueidis.RedisMessage {
	if len(r.rest) == 0 {
		r.err = errors.Join(r.err, errors.New("redisstore: the script's answer is too short"))
		return nil
	}
	m := &r.rest[0]
	r.rest = r.rest[1:]
	return m
}

func (r *reading) int() int64 {
	m := r.next()
	if m == nil {
		return 0
	}
	n, err := m.AsInt64()
	r.err = errors.Join(r.err, err)
	return n
}

func (r *reading) text() string {
	if len(r.rest) == 0 {
		return ""
	}
	s, err := r.next().ToString()
	r.err = errors.Join(r.err, err)
	return s
}

func (r *reading) bytes() []byte {
	m := r.next()
	if m == nil {
		return nil
	}
	b, err := m.AsBytes()
	r.err = errors.Join(r.err, err)
	return b
}

func (r *reading) token() (t dibs.Token) {
	copy(t[:], r.bytes())
	return t
}

package memstore_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// one is a batch of one, the way in which a Client calls this store.
type one struct {
	s      *memstore.Store
	ctx    context.Context
	claim  [1]store.Claim
	answer [1]store.Answer
	settle [1]store.Settlement
	errs   [1]error
}

func newOne(s *memstore.Store, name string) *one {
	key := store.Key{Namespace: "bench", Name: name}
	return &one{
		s: s, ctx: context.Background(),
		claim:  [1]store.Claim{{Key: key, TTL: 30 * time.Second, Permits: 1, Weight: 1}},
		settle: [1]store.Settlement{{Key: key}},
	}
}

func (o *one) cycle(b testing.TB) {
	t := store.NewToken()
	o.claim[0].Token, o.settle[0].Token = t, t
	o.answer[0] = store.Answer{}
	o.s.Claim(o.ctx, o.claim[:], o.answer[:])
	o.s.Settle(o.ctx, o.settle[:], o.errs[:])
	if o.answer[0].State != store.Granted || o.errs[0] != nil {
		b.Fatalf("%+v, %v", o.answer[0], o.errs[0])
	}
}

func BenchmarkClaimSettle(b *testing.B) {
	o := newOne(open(b, nil), "k")
	b.ReportAllocs()
	for b.Loop() {
		o.cycle(b)
	}
}

func BenchmarkClaimSettleParallel(b *testing.B) {
	s := open(b, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		o := newOne(s, store.NewToken().ID())
		for pb.Next() {
			o.cycle(b)
		}
	})
}

// A store full of records is what an idempotency key's first request meets.
func BenchmarkClaimSettleAmongRecords(b *testing.B) {
	s := open(b, nil)
	fill(b, s, 500_000)
	o := newOne(s, "")
	names := make([]string, 1<<14)
	for i := range names {
		names[i] = "new" + strconv.Itoa(i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		name := names[i%len(names)]
		i++
		o.claim[0].Key.Name, o.settle[0].Key.Name = name, name
		o.cycle(b)
	}
}

func BenchmarkDone(b *testing.B) {
	s := open(b, nil)
	o := newOne(s, "k")
	o.settle[0].Outcome, o.settle[0].Data, o.settle[0].Retention = store.Keep, make([]byte, 512), time.Hour
	o.cycle(b)
	o.claim[0].MaxAge = store.AnyAge
	b.ReportAllocs()
	for b.Loop() {
		o.claim[0].Token = store.NewToken()
		s.Claim(o.ctx, o.claim[:], o.answer[:])
		if o.answer[0].State != store.Done {
			b.Fatalf("%+v", o.answer[0])
		}
	}
}

// One step of a long queue: the holder settles, the one in front confirms, and
// the former holder joins at the end; one more in the middle asks.
func BenchmarkHandOver10k(b *testing.B) {
	const waiters = 10_000
	s := open(b, nil)
	o := newOne(s, "k")
	o.claim[0].Mode, o.claim[0].PlaceTTL = store.Queue, time.Hour
	ask := func(t store.Token) store.Answer {
		o.claim[0].Token = t
		o.answer[0] = store.Answer{}
		s.Claim(o.ctx, o.claim[:], o.answer[:])
		return o.answer[0]
	}
	tokens := make([]store.Token, waiters)
	for i := range tokens {
		tokens[i] = store.NewToken()
		ask(tokens[i])
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		o.settle[0].Token = tokens[i]
		s.Settle(o.ctx, o.settle[:], o.errs[:])
		tokens[i] = store.NewToken()
		if a := ask(tokens[i]); a.State != store.Held || !a.Queued {
			b.Fatalf("the last: %+v", a)
		}
		i = (i + 1) % waiters
		if a := ask(tokens[i]); a.State != store.Granted {
			b.Fatalf("the first: %+v", a)
		}
		if a := ask(tokens[(i+waiters/2)%waiters]); a.State != store.Held {
			b.Fatalf("one in the middle: %+v", a)
		}
	}
}

// fill leaves n records.
func fill(b testing.TB, s *memstore.Store, n int) {
	claims := make([]store.Claim, 1000)
	answers := make([]store.Answer, len(claims))
	settlements := make([]store.Settlement, len(claims))
	errs := make([]error, len(claims))
	for i := 0; i < n; i += len(claims) {
		for j := range claims {
			key := store.Key{Name: "old" + strconv.Itoa(i+j)}
			t := store.NewToken()
			claims[j] = store.Claim{Key: key, Token: t, TTL: time.Minute, Permits: 1, Weight: 1}
			settlements[j] = store.Settlement{
				Key: key, Token: t, Outcome: store.Keep, Data: []byte("done"), Retention: 24 * time.Hour,
			}
		}
		clear(answers)
		testkit.Must(b, s.Claim(b.Context(), claims, answers))
		testkit.Must(b, s.Settle(b.Context(), settlements, errs))
	}
}

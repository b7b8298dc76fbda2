package check_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
)

// What a correct store does is accepted, whatever is asked of it, however late it answers
// and whatever nobody hears of. CHECK_SEED runs one seed alone, and prints its history.
func TestReferenceIsAccepted(t *testing.T) {
	first, last := 1, 30
	if s := os.Getenv("CHECK_SEED"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		first, last = n, n
	}
	var grants, unknown, waits, replays int
	for seed := first; seed <= last; seed++ {
		events := reference(t, uint64(seed))
		v := check.History(events, &check.Options{Slack: time.Millisecond})
		if !v.OK() {
			var b bytes.Buffer
			v.WriteText(&b)
			t.Errorf("CHECK_SEED=%d:\n%s", seed, &b)
			if first == last {
				for _, e := range events {
					fmt.Printf("%+v\n", e)
				}
			}
			break
		}
		grants, unknown, waits, replays = grants+v.Grants, unknown+v.Unknown, waits+v.Waits, replays+v.Replays
	}
	t.Logf("%d grants, %d unknown, %d waits, %d replays", grants, unknown, waits, replays)
	if last > first && (grants < 1000 || unknown < 250 || waits < 25 || replays < 25) {
		t.Error("that was too little to mean anything")
	}
}

// reference returns the history of some clients of a memstore.
func reference(t *testing.T, seed uint64) (events []history.Event) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		store, err := memstore.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		began := time.Now().Add(-time.Second)
		lossy := 0.0
		if seed%2 == 0 {
			lossy = 0.05
		}
		w := &world{lossy: lossy, places: map[string][]dibs.Token{}}
		var tape history.Memory
		var all sync.WaitGroup
		for i := range 2 + r.IntN(5) {
			line := tape.Writer(i+1, 0)
			line.Now = func() time.Duration { return time.Since(began) }
			far := &distant{store: store, lossy: lossy, r: rand.New(rand.NewPCG(seed, uint64(i+1)))}
			u := &user{world: w, store: history.Record(far, line, nil), r: rand.New(rand.NewPCG(seed, uint64(100+i)))}
			all.Go(func() {
				for range 30 {
					u.act(t.Context())
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute) // for what is under way still
		synctest.Wait()
		events = tape.Events()
	})
	return events
}

// distant is a store behind a network: calls take their time, and some get lost, are
// late, or are answered in vain.
type distant struct {
	store dibs.Store
	lossy float64

	mu sync.Mutex
	r  *rand.Rand
}

var errNetwork = errors.New("the network is gone")

func (d *distant) draw() (out, back time.Duration, lost bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	most := 10 * time.Millisecond
	if d.r.IntN(20) == 0 {
		most = 600 * time.Millisecond
	}
	return 1 + time.Duration(d.r.Int64N(int64(most))), 1 + time.Duration(d.r.Int64N(int64(most))), d.r.Float64() < d.lossy
}

func cross[Q, A any](d *distant, qs []Q, as []A, call func([]Q, []A) error) error {
	out, back, lost := d.draw()
	if lost {
		qs := slices.Clone(qs)
		time.AfterFunc(3*out, func() { _ = call(qs, make([]A, len(qs))) }) // late, or never
		time.Sleep(back)
		return errNetwork
	}
	time.Sleep(out)
	err := call(qs, as)
	time.Sleep(back)
	return err
}

func (d *distant) Claim(_ context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	return cross(d, claims, answers, func(q []dibs.Claim, a []dibs.Answer) error { return d.store.Claim(context.Background(), q, a) })
}

func (d *distant) Renew(_ context.Context, renewals []dibs.Renewal, errs []error) error {
	return cross(d, renewals, errs, func(q []dibs.Renewal, a []error) error { return d.store.Renew(context.Background(), q, a) })
}

func (d *distant) Settle(_ context.Context, settlements []dibs.Settlement, errs []error) error {
	return cross(d, settlements, errs, func(q []dibs.Settlement, a []error) error { return d.store.Settle(context.Background(), q, a) })
}

// world is what all users know.
type world struct {
	lossy float64

	mu     sync.Mutex
	places map[string][]dibs.Token // reserved, by key
}

// user asks a store whatever comes to mind, careful of nothing but of its tokens.
type user struct {
	*world
	store dibs.Store
	r     *rand.Rand
}

func (u *user) pick(of ...time.Duration) time.Duration { return of[u.r.IntN(len(of))] }

func (u *user) rest(most time.Duration) { time.Sleep(1 + time.Duration(u.r.Int64N(int64(most)))) }

func (u *user) claim(ctx context.Context, c dibs.Claim) dibs.Answer {
	a := make([]dibs.Answer, 1)
	if err := u.store.Claim(ctx, []dibs.Claim{c}, a); err != nil {
		return dibs.Answer{}
	}
	return a[0]
}

func (u *user) renew(ctx context.Context, r dibs.Renewal) error {
	errs := make([]error, 1)
	return cmpErr(u.store.Renew(ctx, []dibs.Renewal{r}, errs), errs[0])
}

func (u *user) settle(ctx context.Context, s dibs.Settlement) error {
	errs := make([]error, 1)
	return cmpErr(u.store.Settle(ctx, []dibs.Settlement{s}, errs), errs[0])
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// act is one attempt from its first claim to whatever end.
func (u *user) act(ctx context.Context) {
	c := dibs.Claim{
		Token: dibs.NewToken(), Permits: 1, Weight: 1, Mode: dibs.Mode(u.r.IntN(2)),
		TTL: u.pick(200*time.Millisecond, time.Second), Stay: u.pick(500*time.Millisecond, 1500*time.Millisecond),
	}
	switch u.r.IntN(6) {
	case 0:
		c.Key.Name, c.Permits, c.Weight = "permits", 3, 1+u.r.IntN(3)
		if u.r.IntN(8) == 0 {
			c.Permits = 4
		}
	case 1:
		c.Key.Name, c.MaxAge = "once", u.pick(dibs.AnyAge, dibs.AnyAge, 300*time.Millisecond)
		c.Fingerprint[0] = byte(1 + u.r.IntN(8)/7)
	case 2:
		c.Key.Name = "place"
		if u.r.IntN(2) == 0 {
			c.Key.Name, c.Permits = "places", 2
		}
		u.reserve(ctx, &c)
	case 3:
		c.Key.Name, c.AtMostOnce = fmt.Sprint("most", u.r.IntN(10)), true
	default:
		c.Key.Name = "mutex"
	}
	if u.r.IntN(15) == 0 {
		look := c
		look.Mode, look.Token, look.From = dibs.Look, dibs.Token{}, dibs.Token{}
		u.claim(ctx, look)
	}
	a := u.claim(ctx, c)
	for range u.r.IntN(12) {
		if a.State == dibs.Granted || a.State == dibs.Done || c.Mode != dibs.Queue {
			break
		}
		u.rest(300 * time.Millisecond)
		a = u.claim(ctx, c)
	}
	if a.State != dibs.Granted {
		u.settle(ctx, dibs.Settlement{Key: c.Key, Token: c.Token, Outcome: dibs.Undo})
		if u.r.IntN(4) > 0 {
			return
		}
	}
	u.hold(ctx, c)
}

// hold does with what it may hold what one does, and what one does not.
func (u *user) hold(ctx context.Context, c dibs.Claim) {
	for range 1 + u.r.IntN(4) {
		u.rest(u.pick(20*time.Millisecond, 100*time.Millisecond, 1200*time.Millisecond))
		s := dibs.Settlement{Key: c.Key, Token: c.Token}
		switch u.r.IntN(8) {
		case 0, 1:
			u.renew(ctx, dibs.Renewal{Key: c.Key, Token: c.Token, TTL: c.TTL})
			continue
		case 2:
			u.claim(ctx, c)
			continue
		case 3:
			s.Outcome = dibs.Abandon
		case 4:
			s.Outcome = dibs.Undo
		case 5, 6:
			if c.Permits == 1 {
				s.Outcome, s.Data, s.Retention = dibs.Keep, fmt.Appendf(nil, "%d", u.r.IntN(100)), u.pick(100*time.Millisecond, time.Hour)
			}
		}
		if u.settle(ctx, s) == nil && u.r.IntN(4) > 0 {
			return
		}
	}
}

// reserve makes a place, or takes one that another has made.
func (u *user) reserve(ctx context.Context, c *dibs.Claim) {
	u.mu.Lock()
	if all := u.places[c.Key.Name]; len(all) > 0 && u.r.IntN(3) > 0 {
		c.From = all[u.r.IntN(len(all))]
	}
	u.mu.Unlock()
	if !c.From.IsZero() || u.r.IntN(2) == 0 {
		return
	}
	r := *c
	r.Token, r.Mode, r.Hold = dibs.NewToken(), dibs.Reserve, u.pick(0, 400*time.Millisecond)
	if a := u.claim(ctx, r); a.Queued {
		u.mu.Lock()
		u.places[c.Key.Name] = append(u.places[c.Key.Name], r.Token)
		u.mu.Unlock()
	}
}

package pgstore

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/sqltest"
)

// TestReserveInLikeClaim: in whatever state a key is, a place that a transaction
// reserves is what it had been if it had been claimed at that moment.
func TestReserveInLikeClaim(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), &Options{MaxWaiters: 3})
	own, other, third := dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
	brief := 300 * time.Millisecond
	print1, print2 := dibs.Fingerprint{1}, dibs.Fingerprint{2}
	claim := func(c dibs.Claim) func(t *testing.T, k dibs.Key) {
		return func(t *testing.T, k dibs.Key) {
			c.Key, c.Permits = k, max(c.Permits, 1)
			if c.Mode != dibs.Reserve && c.TTL == 0 {
				c.TTL = time.Hour
			}
			if c.Mode != dibs.Try && c.Place == 0 {
				c.Place = time.Hour
			}
			answers := make([]dibs.Answer, 1)
			if err := b.s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].Err != nil {
				t.Fatal(err, answers[0].Err)
			}
		}
	}
	settle := func(token dibs.Token, outcome dibs.Outcome) func(t *testing.T, k dibs.Key) {
		return func(t *testing.T, k dibs.Key) {
			errs := make([]error, 1)
			s := dibs.Settlement{Key: k, Token: token, Outcome: outcome, Retention: time.Hour}
			if err := b.s.Settle(t.Context(), []dibs.Settlement{s}, errs); err != nil || errs[0] != nil {
				t.Fatal(err, errs)
			}
		}
	}
	runsOut := func(t *testing.T, k dibs.Key) {
		sqltest.Eventually(t, "it has run out", func() bool {
			var over bool
			err := b.pool.QueryRow(t.Context(), b.s.names.sql(`SELECT NOT EXISTS (SELECT FROM @key WHERE k = $1 AND ends > clock_timestamp())
				AND NOT EXISTS (SELECT FROM @holder WHERE k = $1 AND ends > clock_timestamp())`), appendKey(nil, k)).Scan(&over)
			return err == nil && over
		})
	}
	type steps []func(t *testing.T, k dibs.Key)
	place := dibs.Claim{Token: own, Mode: dibs.Reserve, Place: time.Hour, Permits: 1, Hold: time.Minute}
	with := func(change func(c *dibs.Claim)) dibs.Claim {
		c := place
		change(&c)
		return c
	}
	for name, test := range map[string]struct {
		before steps
		claims []dibs.Claim // place if there are none
	}{
		"never used": {},
		"idle":       {before: steps{claim(dibs.Claim{Token: other}), settle(other, dibs.Release)}},
		"idle, of 3": {
			before: steps{claim(dibs.Claim{Token: other}), settle(other, dibs.Release)},
			claims: []dibs.Claim{with(func(c *dibs.Claim) { c.Permits = 3 })},
		},
		"idle, was of 3":       {before: steps{claim(dibs.Claim{Token: other, Permits: 3}), settle(other, dibs.Release)}},
		"held":                 {before: steps{claim(dibs.Claim{Token: other})}},
		"held by itself":       {before: steps{claim(dibs.Claim{Token: own})}},
		"held, of 3":           {before: steps{claim(dibs.Claim{Token: other, Permits: 3})}},
		"a place of 3":         {before: steps{claim(dibs.Claim{Token: other})}, claims: []dibs.Claim{with(func(c *dibs.Claim) { c.Permits = 3 })}},
		"both of 3":            {before: steps{claim(dibs.Claim{Token: other, Permits: 3})}, claims: []dibs.Claim{with(func(c *dibs.Claim) { c.Permits = 3 })}},
		"of 3, held by itself": {before: steps{claim(dibs.Claim{Token: own, Permits: 3})}, claims: []dibs.Claim{with(func(c *dibs.Claim) { c.Permits = 3 })}},
		"of 3, for something else": {
			before: steps{claim(dibs.Claim{Token: other, Permits: 3, Fingerprint: print1})},
			claims: []dibs.Claim{with(func(c *dibs.Claim) { c.Permits, c.Fingerprint = 3, print2 })},
		},
		"held for the same": {
			before: steps{claim(dibs.Claim{Token: other, Fingerprint: print1})},
			claims: []dibs.Claim{with(func(c *dibs.Claim) { c.Fingerprint = print1 })},
		},
		"held for something else": {
			before: steps{claim(dibs.Claim{Token: other, Fingerprint: print1})},
			claims: []dibs.Claim{with(func(c *dibs.Claim) { c.Fingerprint = print2 })},
		},
		"abandoned": {before: steps{claim(dibs.Claim{Token: other}), settle(other, dibs.Abandon)}},
		"abandoned, for something else": {
			before: steps{claim(dibs.Claim{Token: other, Fingerprint: print1}), settle(other, dibs.Abandon)},
			claims: []dibs.Claim{with(func(c *dibs.Claim) { c.Fingerprint = print2 })},
		},
		"run out":          {before: steps{claim(dibs.Claim{Token: other, TTL: brief}), runsOut}},
		"run out, unknown": {before: steps{claim(dibs.Claim{Token: other, TTL: brief, AtMostOnce: true}), runsOut}},
		"run out, was of 3": {
			before: steps{claim(dibs.Claim{Token: other, TTL: brief, Permits: 3}), runsOut},
		},
		"a record": {before: steps{claim(dibs.Claim{Token: other}), settle(other, dibs.Keep)}},
		"a record that answers": {
			before: steps{claim(dibs.Claim{Token: other}), settle(other, dibs.Keep)},
			claims: []dibs.Claim{with(func(c *dibs.Claim) { c.MaxAge = dibs.AnyAge })},
		},
		"waited for":    {before: steps{claim(dibs.Claim{Token: other}), claim(dibs.Claim{Token: third, Mode: dibs.Queue})}},
		"has a place":   {before: steps{claim(place), claim(dibs.Claim{Token: third, Mode: dibs.Reserve})}},
		"it waits":      {before: steps{claim(dibs.Claim{Token: other}), claim(dibs.Claim{Token: own, Mode: dibs.Queue})}},
		"place taken":   {before: steps{claim(place), claim(dibs.Claim{Token: other, Redeems: own})}},
		"nearly full":   {before: steps{claim(dibs.Claim{Token: other, Mode: dibs.Reserve}), claim(dibs.Claim{Token: third, Mode: dibs.Reserve})}},
		"full":          {before: steps{claim(dibs.Claim{Token: other, Mode: dibs.Reserve}), claim(dibs.Claim{Token: third, Mode: dibs.Reserve}), claim(dibs.Claim{Token: dibs.Token{1}, Mode: dibs.Reserve})}},
		"twice":         {claims: []dibs.Claim{place, with(func(c *dibs.Claim) { c.Hold = 0 })}},
		"two":           {claims: []dibs.Claim{with(func(c *dibs.Claim) { c.Token = third }), place}},
		"more than fit": {claims: []dibs.Claim{place, with(func(c *dibs.Claim) { c.Token = dibs.Token{1} }), with(func(c *dibs.Claim) { c.Token = dibs.Token{2} }), with(func(c *dibs.Claim) { c.Token = third })}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(test.claims) == 0 {
				test.claims = []dibs.Claim{place}
			}
			var found [2]state
			for i, k := range []dibs.Key{{Namespace: "claimed", Name: name}, {Namespace: "transaction", Name: name}} {
				for _, step := range test.before {
					step(t, k)
				}
				claims := append([]dibs.Claim(nil), test.claims...)
				for j := range claims {
					claims[j].Key = k
				}
				if i == 0 {
					for j := range claims { // one after the other: they are to be in this order
						if err := b.s.Claim(t.Context(), claims[j:j+1], make([]dibs.Answer, 1)); err != nil {
							t.Fatal(err)
						}
					}
				} else if err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
					return b.s.Reserver(tx).Reserve(t.Context(), claims)
				}); err != nil {
					t.Fatal(err)
				}
				found[i] = b.state(t, k, claims[len(claims)-1])
			}
			if found[0] != found[1] {
				t.Errorf("claimed: %+v\nin a transaction: %+v", found[0], found[1])
			}
		})
	}
}

// state is what can be found out of a key and one who asks for it.
type state struct {
	stranger, own, tries answer
	rows                 string
}

type answer struct {
	state   dibs.State
	ahead   int
	queued  bool
	permits int
}

// state asks for a key as a stranger and as the claim's token, and looks at its places.
func (b *bank) state(t *testing.T, k dibs.Key, c dibs.Claim) (found state) {
	t.Helper()
	c.Hold, c.Place, c.TTL = 0, 0, time.Hour
	stranger := c
	stranger.Token = dibs.NewToken()
	for _, ask := range []struct {
		mode dibs.Mode
		c    dibs.Claim
		a    *answer
	}{{dibs.Look, c, &found.own}, {dibs.Look, stranger, &found.stranger}, {dibs.Try, stranger, &found.tries}} {
		ask.c.Mode = ask.mode
		answers := make([]dibs.Answer, 1)
		if err := b.s.Claim(t.Context(), []dibs.Claim{ask.c}, answers); err != nil || answers[0].Err != nil {
			t.Fatal(err, answers[0].Err)
		}
		a := answers[0]
		*ask.a = answer{a.State, a.Ahead, a.Queued, a.Permits}
	}
	if err := b.pool.QueryRow(t.Context(), b.s.names.sql(`SELECT coalesce(string_agg(concat_ws(' ', token, least(kind, 1), parked, lasts, hold,
			once, max_age, fingerprint, ends = 'infinity' OR ends > clock_timestamp()), E'\n' ORDER BY seq), 'none')
		FROM @waiter WHERE k = $1`), appendKey(nil, k)).Scan(&found.rows); err != nil {
		t.Fatal(err)
	}
	return found
}

package redisstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// exerciseAll does with a store whatever can be done, in all ways that matter to
// the server, and returns the first error. It does not look at the answers. It waits
// this long for wake-ups.
func exerciseAll(ctx context.Context, s *Store, patience time.Duration) error {
	var steps []error
	one := func(c store.Claim) store.Answer {
		answers := make([]store.Answer, 1)
		err := s.Claim(ctx, []store.Claim{c}, answers)
		steps = append(steps, err, answers[0].Err)
		return answers[0]
	}
	end := func(c store.Claim, o store.Outcome) {
		err := settlement(ctx, s, store.Settlement{
			Key: c.Key, Token: c.Token, Outcome: o, Data: []byte("answer"), Retention: time.Minute,
		})
		if !errors.Is(err, store.ErrLost) {
			steps = append(steps, err)
		}
	}
	save := func(c store.Claim) {
		err := renewal(ctx, s, store.Renewal{Key: c.Key, Token: c.Token, TTL: time.Minute, Progress: []byte("half")})
		if !errors.Is(err, store.ErrLost) {
			steps = append(steps, err)
		}
	}
	reserved := func(c *store.Claim) { c.Mode = store.Reserve }
	look := func(c *store.Claim) { c.Mode = store.Look }
	atMostOnce := func(c *store.Claim) { c.AtMostOnce = true }
	run := store.NewToken().ID() // keys of its own

	// A lock that is waited for, twice, so that the second is woken.
	pushed := make(chan store.Token, 16)
	defer s.Notify(func(t store.Token, _ store.Answer) { pushed <- t })()
	a, b, c := lock(run), lock(run, queued), lock(run, queued)
	one(a)
	one(b)
	one(c)
	end(a, store.Release)
	if err := errors.Join(steps...); err != nil {
		return err
	}
	select {
	case <-pushed:
	case <-time.After(patience):
		return errNotWoken
	}
	one(b)
	save(b)
	end(b, store.Abandon)
	one(c)
	end(c, store.Undo)
	one(lock(run, look))

	// A lease from a reserved place, undone, and the place given up.
	r := lock(run+"r", reserved)
	d := lock(run+"r", func(c *store.Claim) { c.From = r.Token })
	one(r)
	one(d)
	one(r)
	end(d, store.Undo)
	one(lock(run+"r", look))
	end(r, store.Release)
	end(store.Claim{Key: d.Key, Token: store.NewToken()}, store.Release)

	// A queue that is full of the dead.
	full, err := New(s.client, &Options{Prefix: s.options.Prefix, MaxWaiters: 2})
	if err != nil {
		return err
	}
	defer full.Close()
	for range 2 {
		one(lock(run+"f", reserved, func(c *store.Claim) { c.PlaceTTL = time.Millisecond }))
	}
	<-time.After(5 * time.Millisecond) // they run out
	if err := full.Claim(ctx, []store.Claim{lock(run+"f", reserved)}, make([]store.Answer, 1)); err != nil {
		return err
	}

	// A waiter whose process has ended.
	i := lock(run + "i")
	gone, err := New(s.client, &Options{Prefix: s.options.Prefix})
	if err != nil {
		return err
	}
	defer gone.Close()
	defer gone.Notify(func(store.Token, store.Answer) {})()
	one(i)
	j, group := lock(run+"i", queued), gone.names.group(i.Key)
	for start := time.Now(); gone.subscriber.channel(group) == pending; { // until it is subscribed
		if time.Since(start) > patience {
			return errNotWoken
		}
		if err := gone.Claim(ctx, []store.Claim{j}, make([]store.Answer, 1)); err != nil {
			return err
		}
	}
	if err := gone.Claim(ctx, []store.Claim{j}, make([]store.Answer, 1)); err != nil {
		return err
	}
	channel := gone.names.channel(group, gone.subscriber.process)
	gone.Close()
	publish := "PUBLISH"
	if s.names.cluster {
		publish = "SPUBLISH"
	}
	for start := time.Now(); ; { // until the subscription has ended
		if time.Since(start) > patience {
			return errStillSubscribed
		}
		n, err := s.client.Do(ctx, s.client.B().Arbitrary(publish).Keys(channel).Args("").Build()).AsInt64()
		if err != nil {
			return explain(publish, err)
		}
		if n == 0 {
			break
		}
	}
	end(i, store.Release)

	// Records, and what operators do.
	e := lock(run+"e", answered, atMostOnce)
	one(e)
	save(e)
	end(e, store.Abandon)
	one(lock(run+"e", answered, atMostOnce))
	_, err = s.Resolve(ctx, e.Key, "", []byte("resolved"), time.Minute)
	steps = append(steps, err)
	one(lock(run+"e", answered))
	_, err = s.Forget(ctx, e.Key, "")
	steps = append(steps, err)
	g := lock(run+"e", answered)
	one(g)
	one(lock(run+"e", answered, queued))
	end(g, store.Keep)
	end(g, store.Keep)
	h := lock(run + "e")
	one(h)
	_, err = s.ForceRelease(ctx, e.Key, h.Token.ID())
	steps = append(steps, err)
	for _, q := range []store.Query{{Data: true}, {}, {HeldFor: longHeld, Conditions: []store.Condition{store.ConditionHeld}}} {
		for _, err := range s.List(ctx, q) {
			steps = append(steps, err)
		}
	}
	return errors.Join(steps...)
}

// What it is like without the rights to subscribe and to end that.
var (
	errNotWoken        = errors.New("no waiter was woken")
	errStillSubscribed = errors.New("an ended process is still subscribed")
)

// TestLeastRights: the rights that the README names are enough, and without any of them Open
// fails and names it. Without the right to subscribe, waiters find out by asking.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*servertest.RedisOptions{"Redis": nil, "Valkey": {Valkey: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, o)
			exerciseRights(t, []*servertest.RedisServer{server}, "redis://app:secret@"+server.Addr(),
				[]string{"+publish", "+pubsub|numsub", "+subscribe"})
		})
	}
}

// exerciseRights takes each right away from a user of the servers in turn.
func exerciseRights(t *testing.T, servers []*servertest.RedisServer, url string, more []string) {
	t.Helper()
	readme := readme(t)
	user := func(rights []string) {
		for _, server := range servers {
			server.Must(append([]any{"ACL", "SETUSER", "app", "reset", "on", ">secret"}, anys(rights)...)...)
		}
	}
	rights := slices.Concat(leastRights, more)
	for _, right := range rights {
		if !strings.Contains(readme, right) {
			t.Errorf("the README does not name %s", right)
		}
	}
	user(rights)
	able := open(t, url, nil)
	if err := exerciseAll(t.Context(), able, testkit.Limit); err != nil {
		t.Fatalf("with %q: %v", rights, err)
	}
	for i, right := range rights {
		user(slices.Delete(slices.Clone(rights), i, i+1))
		s, err := Open(t.Context(), url, &Options{patience: testkit.Limit})
		if strings.HasSuffix(right, "subscribe") {
			if err == nil {
				ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Limit)
				err = exerciseAll(ctx, s, time.Second)
				cancel()
				s.Close()
			}
			if !errors.Is(err, errNotWoken) {
				t.Errorf("without %s: %v; want errNotWoken", right, err)
			}
			continue
		}
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), strings.ReplaceAll(right, "dibs", "PREFIX")) {
			t.Errorf("without %s: %v; want ErrUnauthorized, and that it is named", right, err)
		}
		if right == "+evalsha" || right == "+time" || strings.HasPrefix(right, "~") || right == "+cluster|slots" || right == "+role" {
			continue // Check says that it does not know what the programs may
		}
		found, err := able.Check(t.Context())
		if err == nil && !strings.Contains(list(found), "rights, dangerous: ") {
			t.Errorf("without %s, Check found\n%s", right, list(found))
		}
	}
}

func anys(s []string) []any {
	all := make([]any, len(s))
	for i := range s {
		all[i] = s[i]
	}
	return all
}

// leastRights is what the README says of all kinds of servers.
var leastRights = []string{
	"~dibs:*", "&dibs:*",
	"+evalsha", "+eval", "+time",
	"+get", "+getrange", "+strlen", "+set", "+del", "+exists", "+pexpire", "+persist",
	"+zadd", "+zrem", "+zrange", "+zcount", "+zcard",
	"+hset", "+hget", "+hdel", "+hkeys", "+hmget",
	"+scan", "+zscan",
}

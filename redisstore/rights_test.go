package redisstore

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// exerciseAll does with a store whatever can be done, in all ways that matter to
// the server, and returns the first error. What answers there are is not its
// business. It waits for so long for what it should be told.
func exerciseAll(ctx context.Context, s *Store, patience time.Duration) error {
	var steps []error
	one := func(c dibs.Claim) dibs.Answer {
		answers := make([]dibs.Answer, 1)
		err := s.Claim(ctx, []dibs.Claim{c}, answers)
		steps = append(steps, err, answers[0].Err)
		return answers[0]
	}
	end := func(c dibs.Claim, o dibs.Outcome) {
		err := settlement(ctx, s, dibs.Settlement{
			Key: c.Key, Token: c.Token, Outcome: o, Data: []byte("answer"), Retention: time.Minute,
		})
		if !errors.Is(err, dibs.ErrLost) {
			steps = append(steps, err)
		}
	}
	save := func(c dibs.Claim) {
		err := renewal(ctx, s, dibs.Renewal{Key: c.Key, Token: c.Token, TTL: time.Minute, Progress: []byte("half")})
		if !errors.Is(err, dibs.ErrLost) {
			steps = append(steps, err)
		}
	}
	reserved := func(c *dibs.Claim) { c.Mode = dibs.Reserve }
	look := func(c *dibs.Claim) { c.Mode = dibs.Look }
	atMostOnce := func(c *dibs.Claim) { c.AtMostOnce = true }
	run := dibs.NewToken().ID() // keys of its own

	// A lock that is waited for, twice, so that the second is woken.
	told := make(chan dibs.Token, 16)
	defer s.Notify(func(t dibs.Token) { told <- t })()
	a, b, c := lock(run), lock(run, queued), lock(run, queued)
	one(a)
	one(b)
	one(c)
	end(a, dibs.Release)
	if err := errors.Join(steps...); err != nil {
		return err
	}
	select {
	case <-told:
	case <-time.After(patience):
		return errNotWoken
	}
	one(b)
	save(b)
	end(b, dibs.Abandon)
	one(c)
	end(c, dibs.Undo)
	one(lock(run, look))

	// A reserved place that is redeemed, given back and given up.
	r := lock(run+"r", reserved)
	d := lock(run+"r", func(c *dibs.Claim) { c.Redeems = r.Token })
	one(r)
	one(d)
	one(r)
	end(d, dibs.Undo)
	one(lock(run+"r", look))
	end(r, dibs.Release)
	end(dibs.Claim{Key: d.Key, Token: dibs.NewToken()}, dibs.Release)

	// A queue that is full of the dead.
	full, err := New(s.client, &Options{Prefix: s.options.Prefix, MaxWaiters: 2})
	if err != nil {
		return err
	}
	defer full.Close()
	for range 2 {
		one(lock(run+"f", reserved, func(c *dibs.Claim) { c.Place = time.Millisecond }))
	}
	<-time.After(5 * time.Millisecond) // they run out
	if err := full.Claim(ctx, []dibs.Claim{lock(run+"f", reserved)}, make([]dibs.Answer, 1)); err != nil {
		return err
	}

	// One who waits and has gone.
	i := lock(run + "i")
	gone, err := New(s.client, &Options{Prefix: s.options.Prefix})
	if err != nil {
		return err
	}
	defer gone.Close()
	one(i)
	j, group := lock(run+"i", queued), gone.names.group(i.Key)
	for ctx.Err() == nil && gone.ears.channel(group) == "" { // until it is listened for
		if err := gone.Claim(ctx, []dibs.Claim{j}, make([]dibs.Answer, 1)); err != nil {
			return err
		}
	}
	if err := gone.Claim(ctx, []dibs.Claim{j}, make([]dibs.Answer, 1)); err != nil {
		return err
	}
	channel := gone.names.channel(group, gone.ears.process)
	gone.Close()
	publish := "PUBLISH"
	if s.names.cluster {
		publish = "SPUBLISH"
	}
	for start := time.Now(); ; { // until nobody listens
		if time.Since(start) > patience {
			return errStillHeard
		}
		n, err := s.client.Do(ctx, s.client.B().Arbitrary(publish).Keys(channel).Args("").Build()).AsInt64()
		if err != nil {
			return explain(err)
		}
		if n == 0 {
			break
		}
	}
	end(i, dibs.Release)

	// Records, and what operators do.
	e := lock(run+"e", answered, atMostOnce)
	one(e)
	save(e)
	end(e, dibs.Abandon)
	one(lock(run+"e", answered, atMostOnce))
	_, err = s.Resolve(ctx, e.Key, "", []byte("resolved"), time.Minute)
	steps = append(steps, err)
	one(lock(run+"e", answered))
	_, err = s.Forget(ctx, e.Key)
	steps = append(steps, err)
	g := lock(run+"e", answered)
	one(g)
	one(lock(run+"e", answered, queued))
	end(g, dibs.Keep)
	end(g, dibs.Keep)
	h := lock(run + "e")
	one(h)
	_, err = s.Evict(ctx, e.Key, h.Token.ID())
	steps = append(steps, err)
	for _, err := range s.List(ctx, dibs.Query{Data: true}) {
		steps = append(steps, err)
	}
	return errors.Join(steps...)
}

// What it is like without the rights to subscribe and to end that.
var (
	errNotWoken   = errors.New("nobody was woken")
	errStillHeard = errors.New("who has gone is still listened for")
)

// TestLeastRights: the rights that the README names are enough, and none of them
// can be left out. Without those to subscribe, waiters find out by asking.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	master := servertest.Redis(t, nil)
	replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
	follows(t, master, replica)
	for name, on := range map[string]struct {
		servers []*servertest.RedisServer
		url     string
		more    []string
	}{
		"Redis": {
			servers: []*servertest.RedisServer{master},
			url:     "redis://app:secret@" + master.Addr() + "?replicas=1",
			more:    []string{"+publish", "+pubsub|numsub", "+subscribe", "+wait"},
		},
		"Sentinel": {
			servers: sharedSentinels().Servers(),
			url:     strings.Replace(sharedSentinels().URL(), "://", "://app:secret@", 1) + "?prefix=dibs",
			more:    []string{"+publish", "+pubsub|numsub", "+subscribe", "+role"},
		},
		"Cluster": {
			servers: sharedCluster().Nodes(),
			url:     strings.Replace(sharedCluster().URL(), "://", "://app:secret@", 1),
			more:    []string{"+spublish", "+pubsub|shardnumsub", "+ssubscribe", "+sunsubscribe", "+cluster|slots"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			user := func(rights []string) {
				for _, server := range on.servers {
					server.Must(append([]any{"ACL", "SETUSER", "app", "reset", "on", ">secret"}, anys(rights)...)...)
				}
			}
			rights := slices.Concat(leastRights, on.more)
			for _, right := range rights {
				if !strings.Contains(string(readme), right) {
					t.Errorf("the README does not name %s", right)
				}
			}
			user(rights)
			if err := exerciseAll(t.Context(), open(t, on.url, nil), 10*time.Second); err != nil {
				t.Fatalf("with %q: %v", rights, err)
			}
			for i, right := range rights {
				user(slices.Delete(slices.Clone(rights), i, i+1))
				for _, server := range on.servers {
					server.Must("SCRIPT", "FLUSH") // so that they are sent again
				}
				s, err := Open(t.Context(), on.url, nil)
				if err == nil {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					err = exerciseAll(ctx, s, time.Second)
					cancel()
					s.Close()
				}
				if err == nil {
					t.Errorf("%s is not needed", right)
				} else if !errors.Is(err, ErrUnauthorized) && !errors.Is(err, errNotWoken) && !errors.Is(err, errStillHeard) {
					t.Errorf("without %s: %v; want ErrUnauthorized", right, err)
				}
			}
		})
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
	"+get", "+set", "+del", "+exists", "+pexpire", "+persist",
	"+zadd", "+zrem", "+zrange", "+zcount", "+zcard",
	"+hset", "+hget", "+hdel", "+hgetall", "+hmget", "+hrandfield",
	"+scan",
}

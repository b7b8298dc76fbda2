package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestFaults: while a fault keeps the server from serving, every call returns an error
// that names the fault. Nothing is granted, and no lease is called lost, because the
// server cannot know.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name   string
		happen func(*testing.T, *servertest.RedisServer)
		over   func(*servertest.RedisServer)
		is     error
		or     error         // means the same; which of both is a matter of time
		within time.Duration // of the calls' contexts; 0: testkit.Limit
	}{
		{
			name:   "Hanging",
			happen: func(_ *testing.T, s *servertest.RedisServer) { s.Pause() },
			over:   func(s *servertest.RedisServer) { s.Continue() },
			is:     context.DeadlineExceeded,
			or:     ErrUnreachable,
			within: time.Second,
		},
		{
			name:   "Unreachable",
			happen: func(_ *testing.T, s *servertest.RedisServer) { s.Kill() },
			over:   func(s *servertest.RedisServer) { s.Restart() },
			is:     ErrUnreachable,
		},
		{
			name: "Replica",
			// A master that is cut off still has its data.
			happen: func(_ *testing.T, s *servertest.RedisServer) { s.Must("REPLICAOF", "127.0.0.1", 1) },
			over:   func(s *servertest.RedisServer) { s.Must("REPLICAOF", "NO", "ONE") },
			is:     ErrReadOnly,
		},
		{
			name:   "TooFewReplicas",
			happen: func(_ *testing.T, s *servertest.RedisServer) { s.Must("CONFIG", "SET", "min-replicas-to-write", 1) },
			over:   func(s *servertest.RedisServer) { s.Must("CONFIG", "SET", "min-replicas-to-write", 0) },
			is:     ErrReadOnly,
		},
		{
			name:   "DiskFails",
			happen: failToSave,
			over:   func(s *servertest.RedisServer) { s.Must("CONFIG", "SET", "save", "") },
			is:     ErrReadOnly,
		},
		{
			name: "PasswordChanged",
			happen: func(_ *testing.T, s *servertest.RedisServer) {
				s.Must("ACL", "SETUSER", "app", "resetpass", ">changed")
				s.Must("CLIENT", "KILL", "USER", "app")
			},
			over: func(s *servertest.RedisServer) { s.Must("ACL", "SETUSER", "app", ">secret") },
			is:   ErrUnauthorized,
			or:   ErrUnreachable, // of the connection that ended
		},
		{
			name:   "RightTakenAway",
			happen: func(_ *testing.T, s *servertest.RedisServer) { s.Must("ACL", "SETUSER", "app", "-@write") },
			over:   func(s *servertest.RedisServer) { s.Must("ACL", "SETUSER", "app", "+@write") },
			is:     ErrUnauthorized,
		},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, &servertest.RedisOptions{
				Persistence: servertest.AOF, Users: []string{"app on >secret ~* &* +@all"},
			})
			s := open(t, "redis://app:secret@"+server.Addr(), nil)
			held, once := lock("held"), lock("once", answered)
			mustGrant(t, s, held)
			mustGrant(t, s, once)
			fault.happen(t, server)

			var asking sync.WaitGroup
			for what, ask := range map[string]func(context.Context) error{
				"a claim of a free key": func(ctx context.Context) error {
					answers := make([]store.Answer, 1)
					err := s.Claim(ctx, []store.Claim{lock("free")}, answers)
					return errors.Join(err, answers[0].Err)
				},
				"a claim of a held key": func(ctx context.Context) error {
					answers := make([]store.Answer, 1)
					err := s.Claim(ctx, []store.Claim{lock("held", queued)}, answers)
					return errors.Join(err, answers[0].Err)
				},
				"a renewal": func(ctx context.Context) error {
					return renewal(ctx, s, store.Renewal{Key: held.Key, Token: held.Token, TTL: time.Minute})
				},
				"a stranger's renewal": func(ctx context.Context) error {
					return renewal(ctx, s, store.Renewal{Key: held.Key, Token: store.NewToken(), TTL: time.Minute})
				},
				"a release": func(ctx context.Context) error {
					return settlement(ctx, s, store.Settlement{Key: held.Key, Token: held.Token})
				},
				"a stranger's release": func(ctx context.Context) error {
					return settlement(ctx, s, store.Settlement{Key: key("free"), Token: held.Token})
				},
				"a record": func(ctx context.Context) error {
					return settlement(ctx, s, store.Settlement{
						Key: once.Key, Token: once.Token, Outcome: store.Keep, Data: []byte("answer"), Retention: time.Minute,
					})
				},
				"an eviction": func(ctx context.Context) error {
					_, err := s.ForceRelease(ctx, held.Key, "")
					return err
				},
			} {
				asking.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(fault.within, testkit.Limit))
					err := ask(ctx)
					cancel()
					if !errors.Is(err, fault.is) && (fault.or == nil || !errors.Is(err, fault.or)) {
						t.Errorf("%s: %v; want %v", what, err, fault.is)
					}
					if kind := errtype.Of(err); kind != errtype.Of(fault.is) && (fault.or == nil || kind != errtype.Of(fault.or)) {
						t.Errorf("%s: error.type of %v is %s; want %s", what, err, kind, errtype.Of(fault.is))
					}
				})
			}
			asking.Wait()

			fault.over(server)
			testkit.Eventually(t, "the server serves again", func() bool {
				answer, err := renew(t, s, once)
				return answer == nil && err == nil
			})
			// What hung went through late: nothing but the release is there, and
			// places that run out.
			if fault.is != context.DeadlineExceeded {
				for c, outcome := range map[*store.Claim]store.Outcome{&once: store.Keep, &held: store.Release} {
					testkit.Eventually(t, "it is settled", func() bool { // each connection may be one that has ended
						answer, err := settle(t, s, *c, outcome)
						if err == nil && answer != nil {
							t.Fatalf("settling was answered %v", answer)
						}
						return err == nil
					})
				}
				for _, name := range leftover(t, server, "dibs") {
					if name != newName(s, once.Key, 'r') {
						t.Errorf("%q was left", name)
					}
				}
			}
		})
	}
}

// renewal makes one renewal, and settlement one settlement; the error is the
// call's or the element's.
func renewal(ctx context.Context, s *Store, r store.Renewal) error {
	errs := make([]error, 1)
	err := s.Renew(ctx, []store.Renewal{r}, errs)
	return errors.Join(err, errs[0])
}

func settlement(ctx context.Context, s *Store, x store.Settlement) error {
	errs := make([]error, 1)
	err := s.Settle(ctx, []store.Settlement{x}, errs)
	return errors.Join(err, errs[0])
}

// newName returns the name of a part of a key.
func newName(s *Store, k store.Key, kind byte) string {
	name := s.names.state(k)
	return name[:len(name)-1] + string(kind)
}

// failToSave has a server that cannot write to its disk.
func failToSave(t *testing.T, s *servertest.RedisServer) {
	dir := s.Must("CONFIG", "GET", "dir").([]any)[1].(string)
	s.Must("CONFIG", "SET", "save", "3600 1")
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "dump.rdb", "in the way"), 0o700))
	testkit.Eventually(t, "saving fails", func() bool {
		s.Do("BGSAVE") // refused while one runs
		return s.Info("rdb_last_bgsave_status") == "err"
	})
}

// TestOutOfMemory: nothing new begins, and what was begun comes to its end, with
// its record and with the waiters.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	held, once, next := lock("held"), lock("once", answered), lock("held", queued)
	mustGrant(t, s, held)
	mustGrant(t, s, once)
	mustWait(t, s, next)
	server.Must("CONFIG", "SET", "maxmemory", 1<<20)

	for name, c := range map[string]store.Claim{"a lock": lock("free"), "one that waits": lock("once", queued), "one with a record": lock("new", answered)} {
		a, err := claim(t, s, c)
		if err != nil || !errors.Is(a.Err, store.ErrFull) || a.State != 0 {
			t.Errorf("%s: answered %+v, %v; want ErrFull", name, a, err)
		}
		if answer, err := settle(t, s, c, store.Undo); !errors.Is(answer, store.ErrLost) || err != nil {
			t.Errorf("%s: had something to undo: %v, %v", name, answer, err)
		}
	}
	if a, err := claim(t, s, lock("held")); err != nil || a.State != store.Held {
		t.Errorf("a held key: answered %+v, %v; want Held", a, err)
	}
	mustGrant(t, s, held) // asked again, as after a reply that was lost
	for name, c := range map[string]store.Claim{"the lock": held, "the one with a record": once} {
		if answer, err := renew(t, s, c); answer != nil || err != nil {
			t.Errorf("renewing %s: %v, %v", name, answer, err)
		}
	}
	mustSettle(t, s, once, store.Keep)
	if a, err := claim(t, s, lock("once", answered)); err != nil || a.State != store.Done || string(a.Record.Data) != "answer" {
		t.Errorf("the record: %+v, %v", a, err)
	}
	mustSettle(t, s, held, store.Release)
	mustGrant(t, s, next)
	mustSettle(t, s, next, store.Release)
	for _, name := range leftover(t, server, "dibs") {
		if name != newName(s, once.Key, 'r') {
			t.Errorf("%q was left", name)
		}
	}
}

// TestForeignValues: a value of another program under one of our names is an error of
// claims for its key, and of no others. Nothing is
// granted, and it is not touched where it matters.
func TestForeignValues(t *testing.T) {
	t.Parallel()
	for kind, values := range map[string][][]any{
		"state":  {{"RPUSH", "x"}, {"SET", "theirs"}, {"SET", "5"}, {"SET", ""}, {"SET", "\x01short"}, {"SET", "\x91\x01"}, {"SET", "\x97\x07\x01\x01\x01\x01\x01\x01"}},
		"record": {{"RPUSH", "x"}, {"SET", "theirs"}, {"SET", ""}, {"SET", "\x02theirs"}},
		"queue":  {{"SET", "theirs"}, {"RPUSH", "x"}},
		"places": {{"SET", "theirs"}, {"RPUSH", "x"}},
		"fence":  {{"SET", "theirs"}, {"RPUSH", "x"}, {"SET", "1e300"}},
	} {
		for i, value := range values {
			t.Run(fmt.Sprint(kind, " ", i), func(t *testing.T) {
				t.Parallel()
				server, s := sharedRedis(), open(t, ownURL(), nil)
				k := key("k")
				name := map[string]string{
					"state": newName(s, k, 's'), "record": newName(s, k, 'r'), "queue": newName(s, k, 'q'),
					"places": newName(s, k, 'w'), "fence": s.names.fence(""),
				}[kind]
				holds := kind == "queue" || kind == "places" // these are read when a claim waits
				first := lock("k", answered)
				if holds {
					mustGrant(t, s, first)
				}
				server.Must(value[0], name, value[1])
				before := server.Must("DUMP", name)

				c := lock("k", answered, queued)
				answers := make([]store.Answer, 2)
				err := s.Claim(t.Context(), []store.Claim{c, lock("other")}, answers)
				if !errors.Is(errors.Join(err, answers[0].Err), ErrForeign) || answers[0].State != 0 {
					t.Errorf("the claim was answered %+v, %v; want ErrForeign", answers[0], err)
				}
				if kind != "fence" && (err != nil || answers[1].State != store.Granted) {
					t.Errorf("another key's claim was answered %+v, %v", answers[1], err)
				}
				if kind == "state" || kind == "fence" {
					answer, err := renew(t, s, c)
					if !errors.Is(errors.Join(answer, err), ErrForeign) {
						t.Errorf("the renewal was answered %v, %v; want ErrForeign", answer, err)
					}
					for _, o := range []store.Outcome{store.Release, store.Keep, store.Abandon, store.Undo} {
						if answer, err = settle(t, s, c, o); !errors.Is(errors.Join(answer, err), ErrForeign) {
							t.Errorf("the settlement %d was answered %v, %v; want ErrForeign", o, answer, err)
						}
					}
				}
				if holds {
					mustSettle(t, s, first, store.Release)
				}
				if after := server.Must("DUMP", name); after != before {
					t.Errorf("%q was changed", name)
				}
				server.Must("DEL", name) // which may have no expiry
				for _, left := range leftover(t, server, s.Prefix()) {
					if left != newName(s, key("other"), 's') {
						t.Errorf("%q was left", left)
					}
				}
			})
		}
	}
}

// TestForeignRecordEndsNoTurn: a claim that fails on a foreign record has moved the
// key's time on before it failed. The waiter that this granted the key keeps it.
func TestForeignRecordEndsNoTurn(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	defer s.Notify(func(store.Token, store.Answer) {})() // so that grants are pushed, and count at once
	first, second, third := lock("k"), lock("k", queued), lock("k", queued)
	mustGrant(t, s, first)
	mustListen(t, s, second)
	mustListen(t, s, third)
	mustSettle(t, s, first, store.Release) // the second's lease lasts for one PushedTTL: it never asks
	sharedRedis().Must("SET", newName(s, first.Key, 'r'), "theirs")
	// One run of a script, in which no time passes. When the turn is over, its first
	// claim grants the key to the third, and fails.
	claims, answers := []store.Claim{lock("k", answered, queued), lock("k"), third}, make([]store.Answer, 3)
	testkit.Eventually(t, "the third has its turn", func() bool {
		testkit.Must(t, s.Claim(t.Context(), claims, answers))
		if !errors.Is(answers[0].Err, ErrForeign) {
			t.Fatalf("a claim beside a foreign record was answered %+v", answers[0])
		}
		if answers[1].State != store.Held {
			t.Fatalf("a stranger was answered %+v; want Held", answers[1])
		}
		return answers[2].State == store.Granted
	})
	if a := answers[2]; a.Attempt != 2 {
		t.Errorf("the third was answered %+v; want attempt 2", a)
	}
}

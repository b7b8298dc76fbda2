package mysqlstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestOpenErrors: what is wrong with a server is said when a store is opened, with
// the cure.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{Password: "secret", MaxConnections: 20})
	server.Query("CREATE USER nobody@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT SELECT ON app.* TO nobody@'127.0.0.1'")
	db := openDB(t, server.URL())
	if err := errors.Join(Migrate(t.Context(), db, nil), Migrate(t.Context(), db, &Options{Prefix: "newer"})); err != nil {
		t.Fatal(err)
	}
	server.Query("UPDATE newer_meta SET version = 99")
	at := func(was, is string) string { return strings.Replace(server.URL(), was, is, 1) }
	for name, test := range map[string]struct {
		url  string
		o    *Options
		is   error
		says string
	}{
		"no URL":       {url: "postgres://x", is: ErrURL, says: "write mysql://"},
		"no database":  {url: at("/app", ""), is: ErrURL, says: "names no database"},
		"parameter":    {url: server.URL() + "?charset=latin1", is: ErrURL, says: "charset"},
		"wrong tls":    {url: server.URL() + "?tls=maybe", is: ErrURL, says: "skip-verify"},
		"no authority": {url: server.URL() + "?tls-ca=/nowhere", is: ErrURL, says: "/nowhere"},
		"nobody there": {url: at(server.Addr(), "127.0.0.1:1"), is: ErrUnreachable},
		"no socket":    {url: server.URL() + "?socket=/nowhere", is: ErrUnreachable},
		"password":     {url: at("secret", "wrong"), is: ErrUnauthorized, says: "password is wrong"},
		"database":     {url: at("/app", "/none"), is: ErrUnsupported, says: "create the database"},
		"rights":       {url: at("root:", "nobody:") + "?prefix=none&migrate=true", is: ErrUnauthorized, says: "README"},
		"no tables":    {url: server.URL(), o: &Options{Prefix: "none"}, is: ErrNotMigrated, says: "dibs migrate"},
		"newer tables": {url: server.URL() + "?prefix=newer", is: ErrNewer, says: "version 99"},
	} {
		s, err := Open(t.Context(), test.url, test.o)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want %v, and %q", name, err, test.is, test.says)
		}
	}
	claim := func(s *Store) error {
		answers := make([]dibs.Answer, 1)
		return s.Claim(t.Context(), []dibs.Claim{{Key: dibs.Key{Name: "k"}, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1}}, answers)
	}
	s := open(t, server.URL(), nil)
	server.Query("SET GLOBAL read_only = 1")
	server.Query("GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO nobody@'127.0.0.1'")
	reader, err := Open(t.Context(), at("root:", "nobody:"), &Options{PruneEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := claim(reader); !errors.Is(err, ErrReadOnly) {
		t.Errorf("a server that takes no writes: %v, want ErrReadOnly", err)
	}
	server.Query("DROP TABLE dibs_key")
	if err := claim(s); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("a table that is gone: %v, want ErrNotMigrated", err)
	}
	if err := errors.Join(reader.Close(), reader.Close()); err != nil {
		t.Error(err)
	}
	if err := claim(reader); !errors.Is(err, ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
}

// TestVersions: which servers are too old.
func TestVersions(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{
		"5.7.44-log": true, "8.0.36": false, "9.7.0": false, "10.5.23-MariaDB": true, "10.6.0-MariaDB-log": false,
		"5.5.5-10.4.1-MariaDB": true, "11.4.2-MariaDB-ubu2404": false, "what nobody knows": false,
	} {
		if tooOld(version) != old {
			t.Errorf("%s: %v", version, !old)
		}
	}
}

// TestNoDeadlocks: calls about the same keys, in whatever order they come and from
// however many, all succeed, on both kinds of servers.
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*servertest.MariaDBServer{"MariaDB": mariadb(), "MySQL": mysqld()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := ownPrefix()
			stores := []*Store{open(t, server.URL(), &Options{Prefix: prefix}), open(t, server.URL(), &Options{Prefix: prefix, PruneEvery: 10 * time.Millisecond})}
			var all sync.WaitGroup
			for g := range 64 {
				s := stores[g%len(stores)]
				all.Go(func() {
					for range 6 {
						n := 24
						claims, settlements, renewals := make([]dibs.Claim, n), make([]dibs.Settlement, n), make([]dibs.Renewal, n)
						for i, k := range rand.Perm(n) {
							key, token := dibs.Key{Name: fmt.Sprint(k)}, dibs.NewToken()
							claims[i] = dibs.Claim{
								Key: key, Token: token, Mode: dibs.Mode(rand.IntN(3)), TTL: time.Second, Place: time.Second,
								Permits: 1, MaxAge: time.Duration(rand.IntN(2)) * time.Hour,
							}
							settlements[i] = dibs.Settlement{Key: key, Token: token, Outcome: dibs.Outcome(rand.IntN(4)), Retention: time.Millisecond}
							renewals[i] = dibs.Renewal{Key: key, Token: token, TTL: time.Second}
						}
						answers, errs := make([]dibs.Answer, n), make([]error, n)
						if err := s.Claim(t.Context(), claims, answers); err != nil {
							t.Error(err)
						}
						for i := range answers {
							if answers[i].Err != nil && !errors.Is(answers[i].Err, ErrLocked) {
								t.Error(answers[i].Err)
							}
						}
						if err := s.Renew(t.Context(), renewals, errs); err != nil {
							t.Error(err)
						}
						if err := s.Settle(t.Context(), settlements, errs); err != nil {
							t.Error(err)
						}
						if _, err := s.Prune(t.Context(), 10); err != nil && !errors.Is(err, ErrLocked) {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// TestLockedRow: where somebody keeps the row of a key locked, the calls about it
// fail, after a while, and no others: whether the row is there already or about to be.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*servertest.MariaDBServer{"MariaDB": mariadb(), "MySQL": mysqld()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, server.URL(), &Options{Prefix: ownPrefix(), PruneEvery: -1})
			token := dibs.NewToken()
			claim := func(token dibs.Token, names ...string) []dibs.Answer {
				t.Helper()
				answers, claims := make([]dibs.Answer, len(names)), make([]dibs.Claim, len(names))
				for i, name := range names {
					claims[i] = dibs.Claim{Key: dibs.Key{Name: name}, Token: token, Mode: dibs.Queue, TTL: time.Minute, Place: time.Minute, Permits: 1}
				}
				if err := s.Claim(t.Context(), claims, answers); err != nil {
					t.Fatal(err)
				}
				return answers
			}
			claim(token, "locked")
			conn, err := openDB(t, server.URL()).Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for _, sql := range []string{
				"BEGIN", fmt.Sprintf("SELECT * FROM @key WHERE k=x'00%x' FOR UPDATE", "locked"), fmt.Sprintf("INSERT INTO @key (k,fence,permits) VALUES (x'00%x',0,1)", "new"),
			} {
				if _, err := conn.ExecContext(t.Context(), s.names.sql(sql)); err != nil {
					t.Fatal(err)
				}
			}
			start := time.Now()
			settlements := []dibs.Settlement{{Key: dibs.Key{Name: "locked"}, Token: token}, {Key: dibs.Key{Name: "other"}, Token: dibs.NewToken()}}
			errs := make([]error, 2)
			if err := s.Settle(t.Context(), settlements, errs); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(errs[0], ErrLocked) || errs[1] != dibs.ErrLost {
				t.Errorf("%v; want ErrLocked, and ErrLost for the other key", errs)
			}
			answers := claim(dibs.NewToken(), "locked", "free", "new", "free too")
			if !errors.Is(answers[0].Err, ErrLocked) || answers[1].State != dibs.Granted || !errors.Is(answers[2].Err, ErrLocked) || answers[3].State != dibs.Granted {
				t.Errorf("%+v; want ErrLocked, and grants of the other keys", answers)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			if err := s.Settle(t.Context(), settlements[:1], errs[:1]); err != nil || errs[0] != nil {
				t.Errorf("after that: %v, %v", err, errs[0])
			}
		})
	}
}

// TestLockWaitRacesGrant: a claim whose wait for a row ends as the row becomes free is
// granted, or nothing was done for it.
func TestLockWaitRacesGrant(t *testing.T) {
	t.Parallel()
	s := open(t, mariadb().URL(), &Options{Prefix: ownPrefix(), PruneEvery: -1})
	db := openDB(t, mariadb().URL())
	const n = 16
	var all sync.WaitGroup
	var granted, locked atomic.Int64
	for i := range n {
		all.Go(func() {
			k, token := dibs.Key{Name: fmt.Sprint(i)}, dibs.NewToken()
			claim := func(token dibs.Token, mode dibs.Mode) dibs.Answer {
				answers := make([]dibs.Answer, 1)
				if err := s.Claim(t.Context(), []dibs.Claim{{Key: k, Token: token, Mode: mode, TTL: time.Minute, Permits: 1}}, answers); err != nil {
					t.Error(err)
				}
				return answers[0]
			}
			cycle(t, s, k) // so that there is a row
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for _, sql := range []string{"BEGIN", fmt.Sprintf("SELECT * FROM @key WHERE k=x'00%x' FOR UPDATE", k.Name)} {
				if _, err := conn.ExecContext(t.Context(), s.names.sql(sql)); err != nil {
					t.Error(err)
				}
			}
			// The server itself ends the wait and, at nearly the same moment, the lock.
			ended := make(chan error, 1)
			lasts := 3.9 + float64(i)/60
			if i < 4 {
				lasts = 1
			}
			go func() {
				_, err := conn.ExecContext(t.Context(), fmt.Sprintf("SELECT SLEEP(%f)", lasts))
				if err == nil {
					_, err = conn.ExecContext(t.Context(), "ROLLBACK")
				}
				ended <- err
			}()
			a := claim(token, dibs.Try)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			switch stranger := claim(dibs.NewToken(), dibs.Look); {
			case a.State == dibs.Granted && stranger.State == dibs.Held:
				granted.Add(1)
			case errors.Is(a.Err, ErrLocked) && stranger.State == dibs.Free:
				locked.Add(1)
			default:
				t.Errorf("%+v, and then %+v", a, stranger)
			}
		})
	}
	all.Wait()
	if granted.Load() == 0 {
		t.Errorf("%d were granted, %d were not", granted.Load(), locked.Load())
	}
}

// cycle claims a key and settles it, and returns the fence.
func cycle(t testing.TB, s *Store, k dibs.Key) uint64 {
	t.Helper()
	c := dibs.Claim{Key: k, Token: dibs.NewToken(), TTL: time.Minute, Permits: 1}
	answers, errs := make([]dibs.Answer, 1), make([]error, 1)
	if err := s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].State != dibs.Granted {
		t.Errorf("%v, %+v", err, answers[0])
		return 0
	}
	if err := s.Settle(t.Context(), []dibs.Settlement{{Key: k, Token: c.Token}}, errs); err != nil || errs[0] != nil {
		t.Error(err, errs[0])
	}
	return answers[0].Fence
}

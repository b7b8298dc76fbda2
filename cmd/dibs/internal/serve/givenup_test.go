//go:build unix

package serve

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
	"github.com/dibs-go/dibs/stores/memstore"
)

// migrated makes the tables of a store and returns its URL.
func migrated(t *testing.T, url string) string {
	t.Helper()
	_, err := anystore.Migrate(t.Context(), url)
	testkit.Must(t, err)
	return url
}

// TestAPlaceThatIsGivenUpElsewhere: a client settles its token at one server, while calls of that
// token still wait there and at another server. They end. None of them gets the place back, or a lease.
func TestAPlaceThatIsGivenUpElsewhere(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(t *testing.T) string{
		"memory": nil,
		"sqlite": func(t *testing.T) string { return "sqlite:" + t.TempDir() + "/dibs.db" },
		"redis":  func(t *testing.T) string { return servertest.Redis(t, nil).URL() },
		"postgres": func(t *testing.T) string {
			return migrated(t, servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true}).URL())
		},
		"mariadb": func(t *testing.T) string {
			return migrated(t, servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true}).URL())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := func() func() dibs.Store { s := inMemory(t); return func() dibs.Store { return s } }()
			if url != nil {
				at := url(t)
				open = func() dibs.Store {
					s, err := anystore.Open(t.Context(), at, anystore.ToUse)
					testkit.Must(t, err)
					t.Cleanup(func() { testkit.Check(t, s.Close()) })
					return s.Store
				}
			}
			under := open()
			a, b := start(t, under, nil), start(t, open(), nil)
			var joined atomic.Int64 // claims that were answered
			for _, r := range []*rig{a, b} {
				r.server.calls = joining{r.server.calls, &joined}
			}
			for i, test := range []struct {
				name    string
				waiting []*rig
				outcome string // of the token that waits
				free    bool   // the holder releases the key at once
				want    string
			}{
				{"undo", []*rig{a}, "undo", false, "held false"},
				{"release", []*rig{a}, "release", false, "held false"},
				{"a free key", []*rig{a}, "undo", true, "held false"},
				{"two calls at the other server", []*rig{a, a}, "undo", true, "held false"},
				{"two calls at one server", []*rig{b, b}, "undo", false, "held true"},
				{"three calls at two servers", []*rig{b, a, b}, "undo", true, "held"},
				{"its turn comes", []*rig{a}, "", true, "granted false"},
				{"its turn comes at both servers", []*rig{a, b}, "", true, "granted false"},
			} {
				t.Run(test.name, func(t *testing.T) {
					key := fmt.Sprintf("key %d", i)
					claim := func(r *rig, n int, more string) *reply {
						return r.do("POST", "/v1/claim", "", fmt.Sprintf(`{"claims":[{"key":%q,"token":"%032x"%s`, key, n, more))
					}
					settle := func(n int, outcome string) {
						t.Helper()
						got := b.do("POST", "/v1/settle", "", fmt.Sprintf(`{"settlements":[{"key":%q,"token":"%032x","outcome":%q}]}`, key, n, outcome))
						if got.status != 200 || got.state() != "" {
							t.Errorf("the settlement is answered with %s", got.text)
						}
					}
					if got := claim(b, 1, "}]}").state(); got != "granted" {
						t.Fatal(got)
					}
					answers := make(chan *reply, len(test.waiting))
					joined.Store(0)
					for _, r := range test.waiting {
						// The place lasts long, so each call makes one claim for now.
						go func() { answers <- claim(r, 2, `,"mode":"queue","place_ttl_ms":3600000}],"wait_ms":60000}`) }()
					}
					testkit.Eventually(t, "the calls wait", func() bool { return joined.Load() == int64(len(test.waiting)) })
					if test.outcome != "" {
						settle(2, test.outcome)
					}
					if test.free {
						settle(1, "release")
					}
					for range test.waiting {
						got := testkit.Await(t, "the answer to a call that waits", answers)
						if said := fmt.Sprint(got.state(), " ", got.Answers[0].Queued); said != test.want && got.state() != test.want {
							t.Errorf("a call that waits is answered with %s", got.text)
						}
					}
					if test.outcome == "" {
						settle(2, "release")
					}
					if !test.free {
						settle(1, "release")
					}
					for e, err := range under.(store.Inspector).List(t.Context(), store.Query{Name: key, Places: true}) {
						testkit.Must(t, err)
						t.Errorf("left is %+v", e)
					}
				})
			}
		})
	}
}

// joining counts the claims in a queue that a store has answered.
type joining struct {
	dibs.Store
	joined *atomic.Int64
}

func (s joining) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	err := s.Store.Claim(ctx, claims, answers)
	for i := range claims {
		if claims[i].Mode == store.Queue {
			s.joined.Add(1)
		}
	}
	return err
}

// TestAnAnswerThatNobodyReads: the store of a server answers a claim after its caller has hung up. The
// caller has asked another server with its token meanwhile, so the first server must not undo the claim.
// It is the caller's, until the caller settles it.
func TestAnAnswerThatNobodyReads(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"try", "queue", "reserve"} {
		t.Run(mode, func(t *testing.T) {
			under := inMemory(t)
			late := answering{under, make(chan struct{}), make(chan struct{})}
			a, b := start(t, late, nil), start(t, under, nil)
			body := fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x","mode":"%s"}]}`, 1, mode)
			caller, err := net.Dial("tcp", a.Listener.Addr().String())
			testkit.Must(t, err)
			_, err = fmt.Fprintf(caller, "POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			testkit.Must(t, err)
			testkit.Await(t, "the store carries the claim out", late.done)
			testkit.Must(t, caller.Close())
			if got := b.do("POST", "/v1/claim", "", body); got.state() != "granted" && !got.Answers[0].Queued {
				t.Fatalf("the other server answers %s", got.text)
			}
			close(late.answer)
			testkit.Eventually(t, "the first server has answered", func() bool { return a.over.Load() == 1 })
			left := func() (n int) {
				for _, err := range under.List(t.Context(), store.Query{Name: "k", Places: true}) {
					testkit.Must(t, err)
					n++
				}
				return n
			}
			if left() == 0 {
				t.Error("the caller has nothing of what it was granted")
			}
			b.do("POST", "/v1/settle", "", fmt.Sprintf(`{"settlements":[{"key":"k","token":"%032x","outcome":"undo"}]}`, 1))
			if n := left(); n != 0 {
				t.Errorf("after the caller's undo %d entries are left", n)
			}
		})
	}
}

// answering is a store that carries claims out, and answers when it is told to.
type answering struct {
	*memstore.Store
	done, answer chan struct{}
}

func (s answering) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	err := s.Store.Claim(ctx, claims, answers)
	close(s.done)
	<-s.answer
	return err
}

//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// shop is a database with a dibs serve, and workers of an example that pay orders in it.
type shop struct {
	t      *testing.T
	db     *servertest.PostgresServer
	store  string
	socket string
	serve  *process
	worker []string // the command
}

// examples are the workers, with the points of testdata, by language.
var examples = map[string]func(path func(string) string) []string{
	"ruby": func(path func(string) string) []string {
		return []string{"ruby", "-I", path("../../clients/ruby/lib"), "-r", path("testdata/points.rb"), path("../../examples/ruby/orders.rb")}
	},
	"python": func(path func(string) string) []string {
		// Debian's own Python, because it finds Debian's packages.
		return []string{"env", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=" + path("../../clients/python"), "/usr/bin/python3", path("testdata/points.py"), path("../../examples/python/orders.py")}
	},
}

// points are where workers are killed. Of those at settlement the broken way has none.
var points = []string{
	"before call", "before effect", "after effect", "before settlement", "after settlement", "before COMMIT", "after COMMIT", "after call",
}

func newShop(t *testing.T, language string) *shop {
	t.Helper()
	dir, err := os.MkdirTemp("", "dibs") // short, because the path of a socket must be
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := func(name string) string {
		full, err := filepath.Abs(name)
		testkit.Must(t, err)
		return full
	}
	s := &shop{t: t, db: servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true}), socket: dir + "/s", worker: examples[language](path)}
	s.store = s.db.URL()
	if code, _, stderr := run(t, "migrate", "--store", s.store); code != 0 {
		t.Fatal(stderr)
	}
	s.db.Query(`CREATE TABLE payments (number serial, of_order int, amount int); CREATE ROLE app LOGIN;
		GRANT SELECT, INSERT ON payments TO app; GRANT USAGE ON SEQUENCE payments_number_seq TO app;
		GRANT EXECUTE ON FUNCTION dibs_settle_in, dibs_reserve_in TO app`)
	s.serve = serveAt(t, s.store, s.socket)
	return s
}

// command is a worker that pays in that way.
func (s *shop) command(way string) *exec.Cmd {
	c := exec.CommandContext(s.t.Context(), s.worker[0], append(s.worker[1:len(s.worker):len(s.worker)], way)...)
	c.Env = append(os.Environ(), "DIBS_SERVER=unix:"+s.socket, "DATABASE_URL="+strings.Replace(s.store, "//postgres@", "//app@", 1))
	return c
}

// pay gives each of n orders, from a number on, to a worker that is killed at one of the points, and then twice to a
// worker that lives. Each sixteenth time the server is killed, too. It returns how many payments
// the order of each point has.
func (s *shop) pay(t *testing.T, from, n int, way string, at []string) map[string]int {
	t.Helper()
	const ahead = 4 // killed workers that start meanwhile
	orders, to, err := os.Pipe()
	testkit.Must(t, err)
	defer to.Close()
	lives := s.command(way)
	lives.Stdin, lives.Env = orders, append(lives.Env, "WORKERS=16")
	survivor := failpoint.Start(t, "", lives)
	orders.Close()
	children := make([]*failpoint.Child, n)
	for i := range n + ahead {
		if i < n {
			c := s.command(way)
			c.Stdin = strings.NewReader(fmt.Sprintln(from + i))
			children[i] = failpoint.Start(t, at[i%len(at)], c)
		}
		if i := i - ahead; i >= 0 {
			children[i].Await()
			if i%16 == 15 {
				s.restart()
			}
			children[i].Kill()
			_, err := fmt.Fprintf(to, "%[1]d\n%[1]d\n", from+i)
			testkit.Must(t, err)
		}
	}
	answers := map[string][]string{}
	for range 2 * n {
		order, number, _ := strings.Cut(survivor.Says(), " ")
		answers[order] = append(answers[order], number)
	}
	paid := map[string][]string{}
	for _, row := range s.db.Query("SELECT of_order, number FROM payments") {
		paid[row[0]] = append(paid[row[0]], row[1])
	}
	counts := map[string]int{}
	for i := range n {
		order, point := fmt.Sprint(from+i), at[i%len(at)]
		numbers := answers[order]
		if len(numbers) != 2 || numbers[0] != numbers[1] || !slices.Contains(paid[order], numbers[0]) {
			t.Errorf("the order %s, killed %s: the answers %q, the payments %q", order, point, numbers, paid[order])
		}
		counts[point] = max(counts[point], len(paid[order]))
	}
	return counts
}

// restart kills the server and starts another one at its address.
func (s *shop) restart() {
	s.t.Helper()
	testkit.Must(s.t, s.serve.Process.Kill())
	<-s.serve.done
	s.serve = serveAt(s.t, s.store, s.socket)
}

// checkPayments pays n orders in each language, and that many times.
func checkPayments(t *testing.T, n, times int) {
	for language := range examples {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, language)
			for i := range times {
				t.Run(fmt.Sprintf("from %d", i*n), func(t *testing.T) { // which gives its files back
					for point, payments := range s.pay(t, i*n, n, "cured", points) {
						if payments != 1 {
							t.Errorf("killed %s: %d payments of an order", point, payments)
						}
					}
				})
			}
			if got := s.db.Query("SELECT count(*) FROM payments")[0][0]; got != fmt.Sprint(n*times) {
				t.Errorf("%s payments of %d orders", got, n*times)
			}
		})
	}
}

// TestPayments: an order whose worker is killed anywhere is paid once, if its key is settled in the
// transaction of the payment.
func TestPayments(t *testing.T) {
	t.Parallel()
	checkPayments(t, 2*len(points), 1)
}

// TestBrokenPayments: if the key is completed after the transaction, a worker that is killed
// between the two pays twice.
func TestBrokenPayments(t *testing.T) {
	t.Parallel()
	for language := range examples {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			at := slices.DeleteFunc(slices.Clone(points), func(p string) bool { return strings.HasSuffix(p, "settlement") })
			for point, payments := range newShop(t, language).pay(t, 0, len(at), "broken", at) {
				if want := map[bool]int{true: 2, false: 1}[point == "after COMMIT"]; payments != want {
					t.Errorf("killed %s: %d payments of the order, want %d", point, payments, want)
				}
			}
		})
	}
}

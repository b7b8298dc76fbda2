//go:build nightly

package torture_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	neturl "net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/bysql"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/target"
	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/casstore/etcd"
)

// broken begins the name of a folder that says what is wrong with the store in it.
const broken = "broken-"

func TestMain(m *testing.M) {
	torture.Child(open)
	testkit.Main(m, nil)
}

// open opens a store, which is broken if its folder says so.
func open(ctx context.Context, url string) (*torture.Store, error) {
	if addr, ok := strings.CutPrefix(url, "etcd://"); ok {
		return openEtcd(ctx, addr)
	}
	s, err := torture.OpenStore(ctx, url)
	if err != nil {
		return nil, err
	}
	if to, pooler, ok := strings.Cut(url, target.BySQL); ok && os.Getpid()%2 == 0 { // the other half are workers in Go
		return s, speakSQL(s, to, pooler)
	}
	_, wrong, _ := strings.Cut(filepath.Base(filepath.Dir(url)), broken)
	switch wrong {
	case "exclusion":
		s.Store = &careless{s.Store}
	case "goroutine":
		s.Close = func() error {
			go func() { select {} }()
			return nil
		}
	case "close":
		s.Close = func() error { return nil }
	case "release":
		s.Store = &clinging{s.Store}
	}
	return s, nil
}

func openEtcd(ctx context.Context, addr string) (*torture.Store, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(addr, ","), DialTimeout: time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	s, err := etcd.Open(ctx, client, nil)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &torture.Store{Store: s, Close: func() error { return errors.Join(s.Close(), client.Close()) }}, nil
}

// speakSQL makes a store one by SQL, through a pooler.
func speakSQL(s *torture.Store, to, pooler string) error {
	at, err := neturl.Parse(to)
	if err != nil {
		return err
	}
	at.Host, at.RawQuery = pooler, "sslmode=disable&default_query_exec_mode=simple_protocol&connect_timeout=5"
	db, err := sql.Open("pgx", at.String())
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(8)
	other, shut := s.Store.(bysql.Other), s.Close
	s.Store = bysql.New(db, `"public"."dibs_`, other)
	s.Close = func() error {
		_ = db.Close() // an error here is about an idle connection that a fault broke
		return shut()
	}
	return nil
}

// careless grants what others hold, now and then.
type careless struct{ dibs.Store }

func (c *careless) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	err := c.Store.Claim(ctx, claims, answers)
	for i := range answers {
		if claims[i].Mode == store.Try && answers[i].State == store.Held {
			answers[i] = store.Answer{State: store.Granted, Fence: answers[i].Fence + 1, Attempt: 1}
		}
	}
	return err
}

// clinging says that keys are given back, and holds on to them.
type clinging struct{ dibs.Store }

func (c *clinging) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	for i, s := range settlements {
		if s.Outcome == store.Keep {
			if err := c.Store.Settle(ctx, settlements[i:i+1], errs[i:i+1]); err != nil {
				return err
			}
			continue
		}
		// For long after the last worker has gone.
		if err := c.Renew(ctx, []store.Renewal{{Key: s.Key, Token: s.Token, TTL: clung}}, errs[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// clung is how long a store that does not let go holds on.
const clung = time.Minute

// TestBroken: what is wrong is found, and shown.
func TestBroken(t *testing.T) {
	for _, test := range []struct {
		broken string
		want   func(*torture.Report) []string
		text   string
	}{
		{"exclusion", func(r *torture.Report) []string { return r.Violations }, "lease, key mutex/"},
		{"goroutine", func(r *torture.Report) []string { return r.Left }, "storm_test.go"},
		{"close", func(r *torture.Report) []string { return r.Left }, "dibs.db-wal"},
		{"release", func(r *torture.Report) []string { return append(r.Stuck[:1:1], r.Left...) }, "is held"},
	} {
		t.Run(test.broken, func(t *testing.T) {
			t.Parallel()
			dir, folder := t.TempDir(), filepath.Join(t.TempDir(), broken+test.broken)
			testkit.Must(t, os.Mkdir(folder, 0o700))
			r, err := torture.Run(t.Context(), &torture.Options{
				URL: "sqlite:" + filepath.Join(folder, "dibs.db"), Open: open, Duration: 2 * time.Second, Faults: "none", Dir: dir, Seed: 1,
			})
			testkit.Must(t, err)
			if all := strings.Join(test.want(r), "\n"); r.OK() || !r.Broke() || !strings.Contains(all, test.text) {
				t.Errorf("%q is not in %q; failures %q, troubles %q", test.text, all, r.Failures(), r.Broken)
			}
			shown(t, r)
			if files, err := filepath.Glob(filepath.Join(dir, "worker-*.jsonl")); err != nil || len(files) != r.Processes {
				t.Errorf("there are the histories %q of %d processes, %v", files, r.Processes, err)
			}
		})
	}
}

// shown: a report of a failure says so in each of its forms.
func shown(t *testing.T, r *torture.Report) {
	t.Helper()
	var text, object bytes.Buffer
	testkit.Must(t, errors.Join(r.WriteText(&text), r.WriteJSON(&object)))
	if s := text.String(); !strings.Contains(s, "FAILED: ") || !strings.Contains(s, "--seed 1 ") || strings.Contains(s, "0 violations") {
		t.Errorf("the text does not say it: %s", s)
	} else if len(r.Violations) > 0 && !strings.Contains(s, " claim ") {
		t.Errorf("the text does not show what happened: %s", s)
	}
	var fields struct {
		Seed       uint64
		Violations []string
	}
	if err := json.Unmarshal(object.Bytes(), &fields); err != nil || fields.Seed != 1 || len(fields.Violations) != len(r.Violations) {
		t.Errorf("the object is %+v, %v", fields, err)
	}
}

// TestAskedFor: a run in which a fault that was asked for by its name does not apply
// does not count as passed, and one without any fault says so.
func TestAskedFor(t *testing.T) {
	for _, test := range []struct {
		faults string
		want   string
	}{
		{"none", ""},
		{"flushall", "the fault flushall was asked for and does not apply"},
		{"data", ""},
	} {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		r, err := torture.Run(t.Context(), &torture.Options{
			URL: "sqlite:" + filepath.Join(t.TempDir(), "dibs.db?shared=true"), Shown: "sqlite:/srv/dibs.db", Open: open, Duration: time.Second, Faults: test.faults, Workers: 2,
		})
		testkit.Must(t, err)
		if got := strings.Join(r.Failures(), "; "); got != test.want || r.OK() != (test.want == "") || r.Broke() {
			t.Errorf("%s: failures %q, want %q", test.faults, got, test.want)
		}
		if left, err := os.ReadDir(dir); err != nil || (len(left) > 0) != (test.want != "") {
			t.Errorf("%s: histories are kept of failed runs, and only of those: %v, %v", test.faults, left, err)
		}
		if r.Effects == 0 {
			t.Errorf("%s: nothing was done in a transaction", test.faults)
		}
	}
}

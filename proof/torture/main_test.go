package torture_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/backend"
	"github.com/dibs-go/dibs/proof/torture"
)

// broken begins the name of a folder that says what is wrong with the store in it.
const broken = "broken-"

func TestMain(m *testing.M) {
	torture.Child(open)
	flag.Parse()
	// Runs mostly wait, for faults and for time.
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// open opens a store, which is broken if its folder says so.
func open(ctx context.Context, url string) (*torture.Store, error) {
	s, err := backend.Open(ctx, url)
	if err != nil {
		return nil, err
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

// careless grants what others hold, now and then.
type careless struct{ dibs.Store }

func (c *careless) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	err := c.Store.Claim(ctx, claims, answers)
	for i := range answers {
		if claims[i].Mode == dibs.Try && answers[i].State == dibs.Held {
			answers[i] = dibs.Answer{State: dibs.Granted, Fence: answers[i].Fence + 1, Attempt: 1}
		}
	}
	return err
}

// clinging says that keys are given back, and holds on to them.
type clinging struct{ dibs.Store }

func (c *clinging) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	for i, s := range settlements {
		if s.Outcome == dibs.Keep {
			if err := c.Store.Settle(ctx, settlements[i:i+1], errs[i:i+1]); err != nil {
				return err
			}
			continue
		}
		// For long after the last worker has gone.
		if err := c.Renew(ctx, []dibs.Renewal{{Key: s.Key, Token: s.Token, TTL: clung}}, errs[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

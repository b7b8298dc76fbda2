package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestRecordThatIsNeverTaken: a too large record has another error than one that may be stored later.
func TestRecordThatIsNeverTaken(t *testing.T) {
	s := &Store{}
	s.options.MaxRecord = 10
	for n, want := range map[int]error{10: nil, 11: store.ErrTooLarge} {
		if err := s.fits(n); !errors.Is(err, want) {
			t.Errorf("a record of %d bytes: %v, want %v", n, err, want)
		}
	}
}

// TestRecordThatTheServerNeverReads: a record above the server's own limit is refused for
// good, and the settlements that are sent with it are done.
func TestRecordThatTheServerNeverReads(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, &servertest.RedisOptions{Directives: []string{"proto-max-bulk-len 1mb"}})
	s := open(t, server.URL(), nil)
	settlements, errs := make([]store.Settlement, 3), make([]error, 3)
	for i := range settlements {
		c := lock(string(rune('a' + i)))
		if a, err := claim(t, s, c); err != nil || a.State != store.Granted {
			t.Fatalf("%+v, %v", a, err)
		}
		settlements[i] = store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Keep, Data: []byte("answer"), Retention: time.Hour}
	}
	settlements[1].Data = make([]byte, 2<<20)
	// The server hangs up after its answer, which may get lost. Records may be sent again.
	testkit.Eventually(t, "all are answered", func() bool {
		err := s.Settle(t.Context(), settlements, errs)
		if err != nil && !errors.Is(err, ErrUnreachable) {
			t.Error(err)
		}
		return err == nil
	})
	if !errors.Is(errs[1], store.ErrTooLarge) || !strings.Contains(errs[1].Error(), "proto-max-bulk-len") {
		t.Errorf("the large record: %v", errs[1])
	}
	for _, i := range []int{0, 2} {
		var a store.Answer
		testkit.Eventually(t, "a claim is answered", func() (ok bool) {
			var err error
			if a, err = claim(t, s, lock(string(rune('a'+i)), answered)); err != nil && !errors.Is(err, ErrUnreachable) {
				t.Error(err)
			}
			return err == nil
		})
		if errs[i] != nil || a.State != store.Done {
			t.Errorf("the record sent with it: %v; %+v", errs[i], a)
		}
	}
}

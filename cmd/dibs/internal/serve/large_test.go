package serve

import (
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/httpstore"
)

// TestManyLargeRecords: records that the server takes one by one are also stored if they are settled
// at once. A record that is too large for the server fails alone.
func TestManyLargeRecords(t *testing.T) {
	r := start(t, inMemory(t), nil)
	over, err := httpstore.Open("http://"+r.Listener.Addr().String(), nil)
	testkit.Must(t, err)
	defer over.Close()
	const n, large = 16, 5
	claims, settlements := make([]store.Claim, n), make([]store.Settlement, n)
	for i := range claims {
		key, token, data := dibs.Key{Name: string(rune('a' + i))}, store.NewToken(), make([]byte, 1<<20)
		if i == large {
			data = make([]byte, 13<<20)
		}
		claims[i] = store.Claim{Key: key, Token: token, TTL: time.Minute, Permits: 1, Weight: 1}
		settlements[i] = store.Settlement{Key: key, Token: token, Outcome: store.Keep, Data: data, Retention: time.Minute}
	}
	testkit.Must(t, over.Claim(t.Context(), claims, make([]store.Answer, n)))
	errs := make([]error, n)
	testkit.Must(t, over.Settle(t.Context(), settlements, errs))
	for i, err := range errs {
		if errors.Is(err, dibs.ErrTooLarge) != (i == large) || i != large && err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
}

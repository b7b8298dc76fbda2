package record_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/oncerecord"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/record"
	"github.com/dibs-go/dibs/internal/runrecord"
	"github.com/dibs-go/dibs/store"
)

// TestRead: each kind of record is told from the others, and its JSON is that of dibs ls --json and of the
// page.
func TestRead(t *testing.T) {
	const request = "http:GQ0p0hV7Hq3b8QkHn1oSLg:order-17"
	answer := func(a idempotency.Answer) []byte {
		a.Header = http.Header{}
		data, err := idempotency.EncodeAnswer(request, &a)
		testkit.Must(t, err)
		return data
	}
	ring, err := idempotency.NewKeyRing("new", map[string][]byte{"new": make([]byte, 32)})
	testkit.Must(t, err)
	run, err := runrecord.Run{Command: "report.sh", Host: "worker-1", Began: time.Unix(0, 0).UTC(), TookMS: 1500, Exit: 3}.Record()
	testkit.Must(t, err)
	text := "it is too large"
	notKept, err := json.Marshal(oncerecord.Record{NotKept: &text})
	testkit.Must(t, err)
	for _, test := range []struct {
		name, key string
		data      []byte
		max       int64
		want      string
		notStored bool
	}{
		{"an answer", request, answer(idempotency.Answer{Status: 201, Body: []byte("secret")}), 1 << 20, `{"status":201}`, false},
		{"a long answer", request, answer(idempotency.Answer{Status: 201, Body: make([]byte, 100)}), 99, `{}`, false},
		{"a tombstone", request, answer(idempotency.Answer{Status: 200, NotKept: true}), 1 << 20, `{"status":200}`, true},
		{"an encrypted answer", request, ring.Encrypt(store.Key{Name: request}, store.Fingerprint{}, time.Hour, answer(idempotency.Answer{Status: 201})), 1 << 20, `{"encrypted_with":"new"}`, false},
		{"an answer under another key", "order-17", answer(idempotency.Answer{Status: 201}), 1 << 20, `{}`, false},
		{"a run", "nightly-report", run, 1 << 20, `{"run":{"succeeded":false,"exit":3,"host":"worker-1","command":"report.sh","began":"1970-01-01T00:00:00Z","took_ms":1500}}`, false},
		{"a result", "nightly-report", []byte(`{"value":17}`), 1 << 20, `{}`, false},
		{"a result that was not stored", "nightly-report", notKept, 1 << 20, `{"not_kept":"it is too large"}`, true},
		{"nothing", request, nil, 1 << 20, `{}`, false},
	} {
		c := record.Read(store.Key{Name: test.key}, test.data, test.max)
		got, err := json.Marshal(&c)
		testkit.Must(t, err)
		if string(got) != test.want || c.NotStored() != test.notStored || (c.Answer != nil) != (c.Status != 0) {
			t.Errorf("%s is %s, not stored %v, with the answer %v; want %s, %v", test.name, got, c.NotStored(), c.Answer, test.want, test.notStored)
		}
	}
}

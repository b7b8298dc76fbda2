package leaseapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

const token = "00112233445566778899aabbccddeeff"

// TestWhatIsRefused: a body that is not what the document says is refused, and the error names
// the field.
func TestWhatIsRefused(t *testing.T) {
	for body, want := range map[string]string{
		``:                                  "ends early",
		`{"claims":[`:                       "ends early",
		`{"claims":[{"key":"a"`:             "ends early",
		`[]`:                                "the body: it must be an object",
		`{}`:                                "claims is missing",
		`{"claims":null}`:                   "claims: it must be an array",
		`{"claims":{}}`:                     "claims: it must be an array",
		`{"claims":[1]}`:                    "claims[0]: it must be an object",
		`{"Claims":[]}`:                     `the body: the field "Claims" is unknown`,
		`{"claims":[],"x":1}`:               `the field "x" is unknown`,
		`{"claims":[]} {}`:                  "more than one JSON value",
		`{1:[]}`:                            "invalid character '1'",
		`{"claims" []}`:                     "claims: invalid character '['",
		`{"claims":[],}`:                    "invalid character '}'",
		`{"claims":[,]}`:                    "claims[0]: invalid character ','",
		`{"claims":[]]`:                     "invalid character ']'",
		`{"claims":[{} {}]}`:                "claims",
		`{"wait_ms":01}`:                    "invalid character '1'",
		`{"wait_ms":+1}`:                    "wait_ms",
		`{"wait_ms":"1"}`:                   "wait_ms: it must be a whole number, and is a JSON string",
		`{"wait_ms":9223372036854775808}`:   "wait_ms: it must be a whole number",
		`{"claims":[{"at_most_once":{}}]}`:  "claims[0].at_most_once: it must be true or false",
		`{"claims":[{"key_b64":[1]}]}`:      "claims[0].key_b64: it must be a string, and is a JSON array",
		`{"wait_ms":12`:                     "ends early",
		`{"wait_ms":}`:                      "wait_ms: invalid character '}'",
		`{"wait_ms":tru}`:                   "wait_ms: ",
		`{"claims":[{"key":"a\"`:            "ends early",
		"{\"claims\":[{\"key\":\"a\nb\"}]}": "claims[0].key: ",
		`{"claims":[{"key":"a\x"}]}`:        "claims[0].key: ",
		`{"claims":[],"wait_ms":-1}`:        "wait_ms is -1",
		`{"claims":[],"wait_ms":60001}`:     "wait_ms is 60001",
		`{"claims":[],"timeout_ms":0}`:      "timeout_ms is 0",
		`{"claims":[{"key":"a","token":"` + token + `","mode":"steal"}]}`:                  `claims[0].mode: it is "steal"`,
		`{"claims":[{"key":"a"}]}`:                                                         "claims[0].token is missing",
		`{"claims":[{"key":"a","token":"abc"}]}`:                                           "claims[0].token: it has 3 characters",
		`{"claims":[{"key":"a","token":"` + strings.Repeat("x", 32) + `"}]}`:               "claims[0].token: it must have 32 hexadecimal digits",
		`{"claims":[{"mode":"look"}]}`:                                                     "claims[0].key: it has 0 bytes",
		`{"claims":[{"mode":"look","key":"a","key_b64":"YQ=="}]}`:                          "exclude each other",
		`{"claims":[{"mode":"look","key":"a","key":"b"}]}`:                                 `claims[0]: the field "key" comes twice`,
		`{"claims":[{"mode":"look","key":1}]}`:                                             "claims[0].key: it must be a string, and is a JSON number",
		`{"claims":[{"mode":"look","key":"` + strings.Repeat("k", 513) + `"}]}`:            "claims[0].key: it has 513 bytes",
		`{"claims":[{"mode":"look","key":"a","ttl_ms":1.5}]}`:                              "claims[0].ttl_ms: it must be a whole number",
		`{"claims":[{"mode":"look","key":"a","namespace":"a b"}]}`:                         "claims[0].namespace",
		`{"claims":[{"mode":"look","key":"a","owner":{"pid":"x"}}]}`:                       "claims[0].owner.pid",
		`{"claims":[{"mode":"look","key":"a","fingerprint":"00"}]}`:                        "claims[0].fingerprint: it has 2 characters",
		`{"claims":[{"mode":"look","key":"\ud800"}]}`:                                      "half of a surrogate pair",
		`{"claims":[{"mode":"look","key":"\ud800\ud800"}]}`:                                "half of a surrogate pair",
		`{"claims":[{"mode":"look","key":"a\udc00"}]}`:                                     "half of a surrogate pair",
		`{"claims":[{"mode":"look","key":"\ud800\\ufffd"}]}`:                               "half of a surrogate pair",
		"{\"claims\":[{\"mode\":\"look\",\"key\":\"\xff\"}]}":                              "not UTF-8",
		`{"claims":[{"mode":"look","key_b64":"!"}]}`:                                       "claims[0].key_b64",
		`{"claims":[` + strings.Repeat(`{"mode":"look","key":"a"},`, MaxElements) + `{}]}`: "more than 1024",
		`{"claims":[{"mode":"look","key":` + strings.Repeat("[", 100_000):                  "claims[0].key",
	} {
		if _, err := ReadClaims([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v; want %s", body, err, want)
		}
	}
	for body, want := range map[string]string{
		`{"settlements":[{"key":"a","token":"` + token + `","outcome":"burn"}]}`:                  "settlements[0].outcome",
		`{"settlements":[{"key":"a","token":"` + token + `","data":"YQ=="}]}`:                     "only keep has data",
		`{"settlements":[{"key":"a","token":"` + token + `","outcome":"undo","retention_ms":1}]}`: "only keep has data",
		`{"settlements":[{"key":"a"}]}`:                                                           "token is missing",
	} {
		if _, err := ReadSettlements([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", body, err, want)
		}
	}
}

// TestManyElementsTakeNoMemory: an array of the shortest elements is refused before they take
// memory.
func TestManyElementsTakeNoMemory(t *testing.T) {
	body := []byte(`{"claims":[` + strings.Repeat(`{"mode":"look","key":"a"},`, 1<<18) + `{}]}`)
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ReadClaims(body); err == nil {
				b.Fatal("it was accepted")
			}
		}
	})
	if got := r.AllocedBytesPerOp(); got > int64(len(body)) {
		t.Errorf("%d bytes were allocated for a body of %d", got, len(body))
	}
}

// TestThereAndBack: what is written is read as it was, and a claim has the defaults that the
// document names.
func TestThereAndBack(t *testing.T) {
	tok := store.NewToken()
	claims := []store.Claim{
		{Key: store.Key{Namespace: "n", Name: "\xff\x00"}, Mode: store.Queue, Token: tok, TTL: time.Second, PlaceTTL: 1500 * time.Millisecond, From: store.NewToken(),
			Grace: time.Minute, Permits: 3, Weight: 2, Fingerprint: store.Fingerprint{1}, MaxAge: store.AnyAge, Owner: store.Owner{Host: "h", PID: 7, Label: "l\u202e"}},
		{Key: store.Key{Namespace: "n", Name: "\"\\\u2028 é"}, Mode: store.Try, Token: tok, TTL: math.MaxInt64, PlaceTTL: DefaultPlaceTTL, Permits: 1, Weight: 1, AtMostOnce: true},
	}
	call := ClaimCall{Claims: claims, Wait: 20 * time.Second, Timeout: 25 * time.Second}
	got, err := ReadClaims(WriteClaims(call))
	if err != nil || !reflect.DeepEqual(got, call) {
		t.Errorf("%+v, %v; want %+v", got, err, call)
	}
	short := ClaimCall{Claims: []store.Claim{{Key: claims[1].Key, Token: tok, TTL: time.Millisecond + 1, PlaceTTL: 1, Permits: 1, Weight: 1}}, Wait: 1, Timeout: 1}
	if got, err := ReadClaims(WriteClaims(short)); err != nil || got.Claims[0].TTL != 2*time.Millisecond || got.Claims[0].PlaceTTL != time.Millisecond || got.Wait != time.Millisecond || got.Timeout != time.Millisecond {
		t.Errorf("durations that are not whole milliseconds are read as %+v, %v", got, err)
	}
	least, err := ReadClaims([]byte(`{"claims":[{"key":"a","token":"` + token + `"}]}`))
	want := store.Claim{Key: store.Key{Namespace: Namespace, Name: "a"}, TTL: DefaultTTL, PlaceTTL: DefaultPlaceTTL, Permits: 1, Weight: 1}
	testkit.Must(t, err)
	want.Token = least.Claims[0].Token
	if !reflect.DeepEqual(least.Claims[0], want) || want.Token.IsZero() {
		t.Errorf("the least claim is %+v; want %+v", least.Claims[0], want)
	}
	for _, a := range []store.Answer{
		{State: store.Granted, Fence: math.MaxUint64, Attempt: 3, Progress: []byte{0}},
		{State: store.Held, Fence: 5, Left: time.Millisecond, Ahead: 2, Queued: true},
		{State: store.Done, Record: store.Record{Data: []byte("x"), Age: time.Second, Left: time.Hour}},
		{State: store.Unknown, ID: "abc"}, {State: store.Mismatch}, {State: store.Free},
	} {
		read, err := ReadAnswers(WriteAnswers([]Answer{AnswerOf(&a)}), 1)
		testkit.Must(t, err)
		if back, err := read[0].Claim(); err != nil || !reflect.DeepEqual(back, a) {
			t.Errorf("%+v, %v; want %+v", back, err, a)
		}
	}
	for body, want := range map[string]string{
		` "a" `: "a", `"a", "max_age_ms":null, "at_most_once" : true, "permits":1,  "ow\u006eer":{ }`: "a",
		`"\ud83d\ude00"`: "😀", `"\\ud800"`: `\ud800`, `"\ufffd\u00e9\\"`: "\ufffdé\\",
	} {
		c, err := ReadClaims([]byte(`{"claims":[{"mode":"look","key":` + body + `}]}`))
		if err != nil || c.Claims[0].Key.Name != want {
			t.Errorf("the key %s: %+v, %v", body, c.Claims, err)
		}
	}
	for _, e := range []error{store.ErrLost, store.ErrFull, store.ErrTooLarge, store.ErrBusy} {
		if got := ErrorOf(e).Err(); got != e {
			t.Errorf("%v came back as %v", e, got)
		}
		if got := ErrorOf(errors.Join(e, errors.New("more"))).Err(); !errors.Is(got, e) {
			t.Errorf("%v with more came back as %v", e, got)
		}
	}
}

// FuzzRead: what is read is valid JSON, and if it is written again, it is read as the same.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"claims":[{"key":"a","mode":"look"}],"wait_ms":1}`))
	f.Add([]byte(`{"claims":[{"key_b64":"/w==","token":"` + token + `","mode":"queue","max_age_ms":9223372036854775807}]}`))
	f.Add([]byte(`{"claims" : [ {"ke\u0079":"a\n","token":null,"mode":"look","owner":{"host":"h","pid":-0},"at_most_once":false,"permits":2.0} , {} ] , "timeout_ms":1e3}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := ReadClaims(body)
		if err != nil {
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%s was read", body)
		}
		for i := range c.Claims {
			if c.Claims[i].Key.Namespace == Namespace {
				c.Claims[i].Key.Namespace = "n"
			}
			if c.Claims[i].Validate() != nil {
				return
			}
		}
		again, err := ReadClaims(WriteClaims(c))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if first, second := WriteClaims(c), WriteClaims(again); !bytes.Equal(first, second) {
			t.Errorf("%s and then %s", first, second)
		}
	})
}

// TestAWrongFenceIsRefused: a fence is a decimal number and nothing else, in a list as in an answer.
func TestAWrongFenceIsRefused(t *testing.T) {
	for _, fence := range []string{"12abc", "0x10", "1 2", "-1"} {
		if e, err := (&Entry{State: "held", Runs: []Run{{Fence: fence}}}).Entry(); err == nil {
			t.Errorf("%q in a list is read as %d", fence, e.Runs[0].Fence)
		}
		if a, err := (&Answer{State: "granted", Fence: fence}).Claim(); err == nil {
			t.Errorf("%q in an answer is read as %d", fence, a.Fence)
		}
	}
}

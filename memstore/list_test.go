package memstore

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// List yields each key that stands from its beginning to its end once, also when a key
// before it in the table comes to its end meanwhile.
func TestListWhileKeysEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		standing := 0
		for i := range 10_000 {
			c := dibs.Claim{Key: dibs.Key{Name: fmt.Sprint(i)}, Token: dibs.NewToken(), Mode: dibs.Reserve, Stay: time.Second}
			if i%10 == 0 {
				c.Stay = time.Hour
				standing++
			}
			if err := s.Claim(t.Context(), []dibs.Claim{c}, make([]dibs.Answer, 1)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range s.shards { // as if they were late
			for _, e := range s.shards[i].buckets {
				for ; e != nil; e = e.next {
					e.queue.timer.Stop()
				}
			}
		}
		time.Sleep(time.Second)
		listed := map[dibs.Key]int{}
		for e, err := range s.List(t.Context(), dibs.Query{}) {
			if err != nil {
				t.Fatal(err)
			}
			if listed[e.Key]++; listed[e.Key] > 1 {
				t.Fatalf("%v was listed twice", e.Key)
			}
		}
		if len(listed) != standing {
			t.Errorf("%d keys were listed, and %d stand", len(listed), standing)
		}
	})
}

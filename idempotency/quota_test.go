package idempotency

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"
)

// TestQuotaForgets: a quota has no memory of principals whose answers have expired, and few buckets.
func TestQuotaForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota(10, time.Hour)
		for i := range 1000 {
			p := q.digest(binary.AppendUvarint(nil, uint64(i)))
			q.add(p, 7, time.Hour)
			if _, full := q.full(p); full {
				t.Fatal("a quota of 10 bytes is full with 7")
			}
			q.add(p, 3, time.Hour)
			left, full := q.full(p)
			if !full || left < time.Hour || left > time.Hour+q.width {
				t.Fatalf("a quota of 10 bytes with 10: full %v, for %v", full, left)
			}
			time.Sleep(time.Minute)
			if len(q.stored) > 60+4 || len(q.buckets) > quotaBuckets+1 {
				t.Fatalf("after %d principals: %d principals, %d buckets", i+1, len(q.stored), len(q.buckets))
			}
		}
		time.Sleep(2 * time.Hour)
		q.full(principalDigest{})
		if len(q.stored)+len(q.buckets) > 0 {
			t.Errorf("after 2h: %d principals, %d buckets", len(q.stored), len(q.buckets))
		}
	})
}

package idempotency

import (
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"
)

// A quota limits the bytes of stored answers that each principal has. It counts what this process
// stored and forgets it when its retention is over. Answers that expire at nearly the same time are
// one bucket, so that memory grows with the principals and not with the answers. A nil quota has no
// limit.
type quota struct {
	most  int64
	width time.Duration // of a bucket
	began time.Time

	mu      sync.Mutex
	swept   int64 // the bucket that was forgotten last
	stored  map[principalDigest]int64
	buckets map[int64]map[principalDigest]int64 // by when they are forgotten, in widths since began
}

// principalDigest names a principal without its credentials.
type principalDigest [16]byte

// quotaBuckets is how many buckets a retention has. An answer counts for up to one bucket longer
// than it is stored.
const quotaBuckets = 16

// newQuota returns a quota; nil if most is 0.
func newQuota(most int64, retention time.Duration) *quota {
	if most == 0 {
		return nil
	}
	return &quota{
		most: most, width: retention / quotaBuckets, began: time.Now(),
		stored: make(map[principalDigest]int64), buckets: make(map[int64]map[principalDigest]int64),
	}
}

// digest returns the digest of a principal.
func (q *quota) digest(principal []byte) (d principalDigest) {
	if q != nil {
		sum := sha256.Sum256(principal)
		copy(d[:], sum[:])
	}
	return d
}

// add counts an answer of n bytes that was stored.
func (q *quota) add(p principalDigest, n int, retention time.Duration) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep()
	end := int64((time.Since(q.began)+retention)/q.width) + 1
	if q.buckets[end] == nil {
		q.buckets[end] = make(map[principalDigest]int64)
	}
	q.buckets[end][p] += int64(n)
	q.stored[p] += int64(n)
}

// full reports whether the principal has used up its quota, and for how long.
func (q *quota) full(p principalDigest) (left time.Duration, full bool) {
	if q == nil {
		return 0, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep()
	stored := q.stored[p]
	if stored < q.most {
		return 0, false
	}
	for _, end := range slices.Sorted(maps.Keys(q.buckets)) {
		left = time.Duration(end)*q.width - time.Since(q.began)
		if stored -= q.buckets[end][p]; stored < q.most {
			break
		}
	}
	return left, true
}

// sweep forgets the answers that have expired, and principals without answers.
func (q *quota) sweep() {
	now := int64(time.Since(q.began) / q.width)
	if now == q.swept {
		return
	}
	q.swept = now
	for end, bucket := range q.buckets {
		if end > now {
			continue
		}
		delete(q.buckets, end)
		for p, n := range bucket {
			if q.stored[p] -= n; q.stored[p] == 0 {
				delete(q.stored, p)
			}
		}
	}
}

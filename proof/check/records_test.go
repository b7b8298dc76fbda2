package check_test

import (
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

var recordCases = []historyCase{
	{"a replay has other bytes", "register", func(h *builder) { h.at("D is done").Data = "another" }},
	{"done before a record was kept", "register", func(h *builder) {
		h.at("D is done").Call, h.at("D is done").Return = 150*ms, 160*ms
	}},
	{"a record that may have been written answers", "", func(h *builder) { h.at("C keeps").Error = history.Unknown }},
	{"a record that may have been written does not answer", "", func(h *builder) {
		h.at("C keeps").Error = history.Unknown
		h.drop("D is done", "D replies", "E mismatches", "C replies")
		h.granted("F claims", 1200, 1210, "once", "F", "queue", 21).MaxAge = time.Hour
	}},
	{"a record is written after its lease was another's", "register", func(h *builder) {
		h.at("C keeps").Error = history.Unknown
		h.drop("C replies", "E mismatches", "D replies")
		h.granted("F claims", 1200, 1210, "once", "F", "queue", 21).MaxAge = time.Hour
		h.settle("F releases", 1220, 1230, "once", "F", "release")
		h.at("D is done").Call, h.at("D is done").Return = 1300*ms, 1310*ms
	}},
	{"a record is written by one that had lost the key", "lease", func(h *builder) {
		h.at("C keeps").Call, h.at("C keeps").Return = 1200*ms, 1210*ms
		h.drop("C replies", "E mismatches", "D replies", "D is done")
	}},
	{"a refused record answers", "register", func(h *builder) {
		h.at("C keeps").Call, h.at("C keeps").Return, h.at("C keeps").Error = 1200*ms, 1210*ms, history.Lost
		h.at("D is done").Call, h.at("D is done").Return = 1300*ms, 1310*ms
		h.drop("C replies", "E mismatches", "D replies")
	}},
	{"a record is kept twice", "", func(h *builder) {
		k := h.settle("C keeps again", 220, 230, "once", "C", "keep")
		k.Data, k.Retention = "answer", time.Hour
	}},
	{"a record answers after its end", "register", func(h *builder) {
		h.at("C keeps").Retention = 50 * ms
		h.drop("E mismatches")
	}},
	{"a record that is too old answers", "register", func(h *builder) { h.at("D is done").MaxAge = 50 * ms }},
	{"a record that has ended does not answer", "", func(h *builder) {
		h.at("C keeps").Retention = 50 * ms
		h.drop("D is done", "D replies", "E mismatches")
		h.granted("F claims", 300, 310, "once", "F", "queue", 21).MaxAge = time.Hour
	}},
	{"an acknowledged record is not found", "register", func(h *builder) {
		h.drop("D is done", "D replies", "E mismatches")
		h.granted("F claims", 300, 310, "once", "F", "queue", 21).MaxAge = time.Hour
	}},
	{"an acknowledged record is not found by a caller that looks", "register", func(h *builder) {
		h.claim("look", 300, 310, "once", "00", "look", "free").MaxAge = time.Hour
	}},
	{"a lock passes over a record", "", func(h *builder) {
		h.granted("F claims", 500, 510, "once", "F", "try", 21).Fingerprint = "aa"
	}},
	{"another fingerprint is answered", "register", func(h *builder) { h.at("D is done").Fingerprint = "bb" }},
	{"another fingerprint is held", "register", func(h *builder) {
		h.at("C's rival is held").Fingerprint = "bb"
	}},
	{"the same fingerprint mismatches", "mismatch", func(h *builder) { h.at("E mismatches").Fingerprint = "aa" }},
	{"one without a fingerprint mismatches", "mismatch", func(h *builder) { h.at("E mismatches").Fingerprint = "" }},
	{"held though no holder runs", "held", func(h *builder) {
		h.claim("F is held", 900, 910, "mutex", "F", "try", "held")
	}},
	{"held while a holder may run", "", func(h *builder) {
		h.at("B releases").Error = history.Unknown
		h.claim("F is held", 900, 910, "mutex", "F", "try", "held")
	}},
	{"a reserved place is not there any more", "places", func(h *builder) {
		h.at("Z redeems").State, h.at("Z redeems").Fence, h.at("Z redeems").Attempt = "held", 0, 0
		h.drop("Z releases")
	}},
	{"a reserved place that has run out blocks", "held", func(h *builder) {
		h.at("X reserves").PlaceTTL = 450 * ms
		h.drop("Z redeems", "Z releases")
		h.claim("V tries", 600, 610, "place", "V", "try", "held")
	}},
	{"a reserved place has run out", "", func(h *builder) {
		h.at("X reserves").PlaceTTL = 250 * ms
		h.granted("V claims", 550, 560, "place", "V", "try", 42).Attempt = 2
		h.at("Z redeems").Left = ms
		h.at("Z redeems").State, h.at("Z redeems").Fence, h.at("Z redeems").Attempt = "held", 0, 0
		h.at("Z redeems").Call, h.at("Z redeems").Return = 600*ms, 610*ms
		h.drop("Z releases")
	}},
}

var userCases = []historyCase{
	{"two are in the section", "sections", func(h *builder) {
		h.at("A leaves").Call, h.at("A leaves").Return = 500*ms, 500*ms
	}},
	{"two share the section", "", func(h *builder) { share(h, 1) }},
	{"two take more of the section than there is", "sections", func(h *builder) { share(h, 2) }},
	{"two in the section see other numbers of permits", "sections", func(h *builder) {
		share(h, 1)
		h.at("Q enters").Permits = 3
	}},
	{"one entered on a lease that it had lost", "", func(h *builder) {
		h.drop("A renews", "A releases")
		h.at("B claims").Call, h.at("B claims").Return, h.at("B claims").Attempt = 1200*ms, 1210*ms, 2
		h.at("B enters").Call, h.at("B enters").Return = 1211*ms, 1211*ms
		h.at("B leaves").Call, h.at("B leaves").Return = 1300*ms, 1300*ms
		h.at("B releases").Call, h.at("B releases").Return = 1310*ms, 1320*ms
		h.at("A leaves").Call, h.at("A leaves").Return, h.at("A leaves").Error = 1250*ms, 1250*ms, history.Lost
	}},
	{"one that paused is in the section with another", "", func(h *builder) {
		stoodStill(h)
	}},
	{"one that did not pause is in the section with another", "sections", func(h *builder) {
		stoodStill(h)
		h.drop("stopped")
	}},
	{"one overstays", "overstayed", func(h *builder) {
		h.at("B leaves").Call, h.at("B leaves").Return, h.at("B leaves").Error = 2500*ms, 2500*ms, history.Lost
		h.drop("B releases")
	}},
	{"one overstays after it was stopped", "", func(h *builder) {
		h.at("B leaves").Call, h.at("B leaves").Return, h.at("B leaves").Error = 2500*ms, 2500*ms, history.Lost
		h.drop("B releases")
		h.add("stopped", 700, 2490, history.Event{Kind: history.Stopped, Process: process("B")})
	}},
	{"a transaction happens twice", "effects", func(h *builder) {
		h.at("C's effect").Name = "transaction"
		h.happened(history.Effect, "D's effect", 305, "once", "D", 0).Name = "transaction"
		h.add("killed", 160, 170, history.Event{Kind: history.Killed, Process: process("C")})
	}},
	{"a caller gets an answer that was never kept", "replies", func(h *builder) { h.at("D replies").Data = "another" }},
	{"a waiter that came later is granted first", "order", func(h *builder) {
		h.claim("V waits", 320, 330, "mutex", "V", "queue", "held")
		h.granted("V claims", 405, 412, "mutex", "V", "queue", 11)
		h.settle("V releases", 414, 416, "mutex", "V", "release")
		h.at("B claims").Fence = 12
		h.at("B claims").Return = 430 * ms
		h.at("B enters").Call, h.at("B enters").Return = 431*ms, 431*ms
	}},
	{"a waiter that came later is granted first by a process that hears of its turns late", "", func(h *builder) {
		h.claim("V waits", 320, 330, "mutex", "V", "queue", "held")
		h.granted("V claims", 405, 412, "mutex", "V", "queue", 11)
		h.settle("V releases", 414, 416, "mutex", "V", "release")
		h.at("B claims").Fence = 12
		h.at("B claims").Return = 430 * ms
		h.at("B enters").Call, h.at("B enters").Return = 431*ms, 431*ms
		h.o.SubscribeDelay = time.Second
	}},
	{"a waiter that came later is granted first because the other one gave its place up while it asked", "", func(h *builder) {
		h.drop("B asks")
		h.settle("B gives up", 310, 320, "mutex", "B", "undo")
		h.claim("V waits", 330, 340, "mutex", "V", "queue", "held")
		h.granted("V claims", 405, 412, "mutex", "V", "queue", 11)
		h.settle("V releases", 414, 416, "mutex", "V", "release")
		h.at("B claims").Call, h.at("B claims").Return, h.at("B claims").Fence = 300*ms, 430*ms, 12
		h.at("B enters").Call, h.at("B enters").Return = 431*ms, 431*ms
	}},
	{"a waiter that came later is granted first and the other one waits on", "order", func(h *builder) {
		h.claim("V waits", 320, 330, "mutex", "V", "queue", "held")
		h.granted("V claims", 405, 412, "mutex", "V", "queue", 11)
		h.drop("B enters", "B leaves", "B releases")
		h.at("B claims").State, h.at("B claims").Fence, h.at("B claims").Attempt, h.at("B claims").Queued = "held", 0, 0, true
		h.at("B claims").Call, h.at("B claims").Return = 500*ms, 510*ms
	}},
	{"a waiter that came later is granted first because the other one missed its turn", "", func(h *builder) {
		h.at("A releases").Call, h.at("A releases").Return = 311*ms, 320*ms
		h.at("A leaves").Call, h.at("A leaves").Return = 310*ms, 310*ms
		h.claim("V waits", 330, 340, "mutex", "V", "queue", "held")
		h.granted("V claims", 1400, 1410, "mutex", "V", "queue", 11)
		h.settle("V releases", 1420, 1430, "mutex", "V", "release")
		h.at("B claims").Call, h.at("B claims").Return, h.at("B claims").Fence = 1440*ms, 1450*ms, 12
		h.drop("B enters", "B leaves", "B releases")
	}},
	{"a waiter that came after a reserved place is granted before", "order", func(h *builder) {
		h.granted("V claims", 150, 160, "place", "V", "try", 39)
		h.settle("V releases", 170, 180, "place", "V", "release")
	}},
	{"a waiter that came after a reserved place is granted when its grace is over", "", func(h *builder) {
		h.drop("Y redeems", "Y abandons", "Z redeems", "Z releases")
		h.at("X reserves").Grace = 200 * ms
		h.claim("V is held", 150, 160, "place", "V", "try", "held")
		h.granted("V claims", 350, 360, "place", "V", "try", 39)
	}},
	{"a process hears of a grant after it has a place behind the next one", "", func(h *builder) {
		h.granted("H claims", 50, 60, "late", "H", "try", 4)
		h.claim("V waits", 100, 110, "late", "V", "queue", "held")
		h.settle("H releases", 120, 130, "late", "H", "release")
		h.granted("U claims", 1250, 1260, "late", "U", "try", 6).Attempt = 2
		e := h.claim("V waits again", 1270, 1280, "late", "V", "queue", "held")
		e.Fence = 6
		h.pushed("V is granted", 100, 1290, "late", "V", 5)
		h.settle("V gives up", 1300, 1310, "late", "V", "undo")
	}},
	{"a lease without a fingerprint was abandoned last", "", func(h *builder) {
		h.granted("A claims fp", 50, 60, "fp", "A", "try", 4).Fingerprint = "aa"
		h.settle("A abandons fp", 70, 80, "fp", "A", "abandon")
		h.granted("B claims fp", 90, 100, "fp", "B", "try", 5).Attempt = 2
		h.granted("B claims fp again", 1200, 1210, "fp", "B", "try", 6).Attempt = 3
		h.settle("B undoes fp", 1220, 1230, "fp", "B", "undo")
		c := h.granted("C claims fp", 1240, 1250, "fp", "C", "try", 7)
		c.Fingerprint, c.Attempt = "bb", 3
	}},
	{"a waiter from a reserved place may have set its grace, granted without knowing", "", func(h *builder) {
		h.drop("Y redeems", "Y abandons", "Z redeems", "Z releases")
		e := h.claim("x waits", 150, 160, "place", "x", "queue", "held")
		e.From, e.Queued, e.Grace = "X", true, 200*ms
		h.settle("x gives up", 170, 180, "place", "x", "undo")
		h.granted("V claims", 400, 410, "place", "V", "try", 39)
	}},
	{"a waiter waits for an idle key", "progress", func(h *builder) {
		h.add("faultsEnd", 1000, 1000, history.Event{Kind: history.FaultsEnd})
		for at := 1100; at < 8000; at += 400 {
			h.claim("V waits", at, at+10, "mutex", "V", "queue", "held")
		}
	}},
	{"a call is not answered in the faultsEnd", "progress", func(h *builder) {
		h.add("faultsEnd", 1000, 1000, history.Event{Kind: history.FaultsEnd})
		h.claim("V tries", 5000, 6000, "mutex", "V", "try", "").Error = history.Unknown
	}},
	{"a waiter waits for a holder at the end of the faults", "", func(h *builder) {
		h.add("faultsEnd", 1000, 1000, history.Event{Kind: history.FaultsEnd})
		h.granted("U claims", 1010, 1020, "mutex", "U", "try", 12)
		for at := 1500; at < 8000; at += 500 {
			h.renew("U renews", at, at+10, "mutex", "U")
		}
		for at := 1100; at < 8000; at += 400 {
			h.claim("V waits", at, at+10, "mutex", "V", "queue", "held")
		}
		h.settle("U releases", 8010, 8020, "mutex", "U", "release")
		h.granted("V claims", 8030, 8040, "mutex", "V", "queue", 13)
	}},
	{"something is left", "left", func(h *builder) { h.o.Left = []string{"a lease of \"mutex\""} }},
}

// share lets P and Q be in the section of their permits together; Q takes weight permits.
func share(h *builder, weight int) {
	for at, token := range map[int]string{200: "P", 211: "Q"} {
		e := h.happened(history.Enter, token+" enters", at, "permits", token, h.at(token+" claims").Fence)
		e.Permits, e.Weight = 2, 1
		h.happened(history.Leave, token+" leaves", at+30, "permits", token, e.Fence)
	}
	h.at("Q enters").Weight = weight
}

// stoodStill lets A's process pause in its section until its lease is B's.
func stoodStill(h *builder) {
	h.drop("A renews", "A releases")
	h.add("stopped", 300, 1240, history.Event{Kind: history.Stopped, Process: process("A")})
	h.at("B claims").Call, h.at("B claims").Return, h.at("B claims").Attempt = 1200*ms, 1210*ms, 2
	h.at("B enters").Call, h.at("B enters").Return = 1211*ms, 1211*ms
	h.at("B leaves").Call, h.at("B leaves").Return = 1300*ms, 1300*ms
	h.at("B releases").Call, h.at("B releases").Return = 1310*ms, 1320*ms
	h.at("A leaves").Call, h.at("A leaves").Return = 1250*ms, 1250*ms
}

// reserve reserves a place of the key "place" for a minute.
func (h *builder) reserve(name string, from, to int, token string) *history.Event {
	e := h.claim(name, from, to, "place", token, "reserve", "held")
	e.TTL, e.PlaceTTL, e.Queued = 0, time.Minute, true
	return e
}

// waits lets a token ask from a reserved place before its turn.
func (h *builder) waits(name string, from, to int, token, place string) *history.Event {
	e := h.claim(name, from, to, "place", token, "try", "held")
	e.From, e.PlaceTTL, e.Queued = place, 0, true
	return e
}

// redeems grants a token the key from a reserved place.
func (h *builder) redeems(name string, from, to int, token, place string, fence uint64) *history.Event {
	e := h.granted(name, from, to, "place", token, "try", fence)
	e.From, e.PlaceTTL = place, 0
	return e
}

// row lets X and W stand in a row of which nothing has come yet, and lets a waiter wait at
// W's place.
func row(h *builder) {
	h.drop("Y redeems", "Y abandons", "Z redeems", "Z releases")
	h.granted("H claims", 50, 60, "place", "H", "try", 39)
	h.settle("H releases", 240, 250, "place", "H", "release")
	h.reserve("W reserves", 120, 130, "W")
	h.waits("w waits", 160, 170, "w", "W")
}

// joined lets x and w join the queue from X's place, one after the other be granted, and the
// first one abandon its lease.
func joined(h *builder) {
	row(h)
	for i, token := range []string{"x", "w"} {
		h.drop(token + " waits")
		e := h.claim(token+" joins", 180+10*i, 185+10*i, "place", token, "queue", "held")
		e.From = "X"
	}
	h.redeems("x redeems", 255, 260, "x", "X", 40).Mode = "queue"
	h.settle("x releases", 280, 290, "place", "x", "abandon")
	w := h.redeems("w redeems", 295, 300, "w", "X", 41)
	w.Mode, w.Attempt = "queue", 2
}

var placeCases = []historyCase{
	{"a place is redeemed, and another one waits there", "", func(h *builder) {
		h.waits("V waits", 420, 430, "V", "X")
		h.settle("V gives up", 440, 450, "place", "V", "undo").Error = history.Lost
	}},
	{"a waiter at a place gives up, and is answered that it had one", "lease", func(h *builder) {
		h.waits("V waits", 420, 430, "V", "X")
		h.settle("V gives up", 440, 450, "place", "V", "undo")
	}},
	{"a place is redeemed, and is not there", "places", func(h *builder) {
		h.waits("V tries", 420, 430, "V", "X").Queued = false
	}},
	{"a redeemer abandoned its lease, and its place is not there", "places", func(h *builder) {
		h.at("Z releases").Outcome = "abandon"
		h.waits("V tries", 520, 530, "V", "X").Queued = false
	}},
	{"a redeemer abandoned its lease, and its place had a shorter grace from then on", "", func(h *builder) {
		h.at("Z redeems").Grace = 10 * ms
		h.at("Z releases").Outcome = "abandon"
		h.waits("V tries", 520, 530, "V", "X").Queued = false
	}},
	{"two places are redeemed in their order", "", func(h *builder) {
		row(h)
		h.waits("x waits", 180, 190, "x", "X")
		h.redeems("x redeems", 255, 260, "x", "X", 40)
		h.settle("x releases", 300, 310, "place", "x", "release")
		h.redeems("w redeems", 315, 320, "w", "W", 41)
	}},
	{"a place is redeemed before the one in front of it", "order", func(h *builder) {
		row(h)
		h.redeems("w redeems", 255, 260, "w", "W", 40)
	}},
	{"a place is redeemed before the one in front of it, whose grace may be over", "", func(h *builder) {
		row(h)
		h.at("X reserves").Grace = 50 * ms
		h.redeems("w redeems", 255, 260, "w", "W", 40)
	}},
	{"a place is redeemed after a waiter that came before it", "", func(h *builder) {
		row(h)
		h.drop("X reserves")
		h.claim("V waits", 70, 80, "place", "V", "queue", "held")
		h.granted("V claims", 245, 256, "place", "V", "queue", 40)
		h.settle("V releases", 270, 280, "place", "V", "release")
		h.redeems("w redeems", 285, 290, "w", "W", 41)
	}},
	{"a place is redeemed before a waiter that came before it", "order", func(h *builder) {
		row(h)
		h.drop("X reserves")
		h.claim("V waits", 70, 80, "place", "V", "queue", "held")
		h.redeems("w redeems", 255, 260, "w", "W", 40)
		h.settle("w releases", 270, 280, "place", "w", "release")
		h.granted("V claims", 285, 290, "place", "V", "queue", 41)
	}},
	{"a place is redeemed before a waiter that came after it", "", func(h *builder) {
		row(h)
		h.drop("X reserves")
		h.claim("V waits", 140, 150, "place", "V", "queue", "held")
		h.redeems("w redeems", 255, 260, "w", "W", 40)
		h.settle("w releases", 270, 280, "place", "w", "release")
		h.granted("V claims", 285, 290, "place", "V", "queue", 41)
	}},
	{"two join the queue from one place", "", func(h *builder) { joined(h) }},
	{"a waiter that joined from a place is passed by a waiter that came after it", "order", func(h *builder) {
		joined(h)
		h.drop("x redeems", "x releases")
		h.granted("V claims", 255, 260, "place", "V", "try", 40)
		h.settle("V releases", 270, 280, "place", "V", "release")
	}},
	{"held only by a claim from a place that was given up", "held", func(h *builder) {
		h.drop("Y redeems", "Y abandons", "Z redeems", "Z releases")
		h.waits("x waits", 180, 190, "x", "X")
		h.settle("X gives up", 200, 210, "place", "X", "release")
		h.claim("V is held", 300, 310, "place", "V", "try", "held")
	}},
}

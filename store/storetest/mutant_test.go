package storetest

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store/storetest/internal/model"
)

// meant says which property is meant to catch which bug. Others may too.
var meant = map[model.Bug]string{
	model.KeyTruncated:         "KeysAreDistinct",
	model.KeyFolded:            "KeysAreDistinct",
	model.KeyTrimmed:           "KeysAreDistinct",
	model.KeyEndsAtNUL:         "KeysAreDistinct",
	model.ClaimKeepsTTL:        "ClaimAgainExtendsTheLease",
	model.RecordCut:            "RecordIsReadWhole",
	model.MaxAgeIgnored:        "MaxAgeIsHonoured",
	model.KeepsSlices:          "NoCallerDataIsKept",
	model.BatchMerges:          "SameKeyInOneBatch",
	model.MismatchJoins:        "MismatchInFront",
	model.AnsweredKeepsPlace:   "KeepAnswersWaiters",
	model.AnsweredEndsFrom:     "AnsweredFromAPlace",
	model.ProgressStops:        "ProgressIsPassedOn",
	model.UndoForgetsAbandoned: "UndoneAsIfNotGranted",
	model.UnknownForgotten:     "UnknownIsForEver",
	model.AbandonedUnsorted:    "AbandonedTogetherCountInOrder",
	model.AbandonedForgotten:   "AbandonmentIsRemembered",
	model.ResolveAny:           "ResolveGivesTheRecord",
	model.PruneLive:            "PruneRemovesWhatEnded",
	model.ForceReleaseStrands:  "ForceReleaseServesTheNext",
	model.ForgetReleases:       "ForgetLetsTheNextRun",
	model.ForgetAny:            "ForgetNamesTheAttempt",
	model.ConditionsIgnored:    "ListSelectsByCondition",
	model.HeldForIgnored:       "ListLeavesOutWhatIsHeldBriefly",
	model.PlacesWait:           "ListTellsWaitersFromReservedPlaces",
	model.BlocksWhileThere:     "ListTellsWaitersFromReservedPlaces",
	model.PermitsMix:           "PermitsChange",
	model.WeightIgnored:        "WeightsAreSummed",
	model.LightOvertakes:       "HeavyIsNotStarved",
	model.HeavyStarves:         "HeavyIsNotStarved",
	model.GrantStrands:         "GrantServesTheNext",
	model.FromIsNothing:        "FromAPlace",
	model.FromBeforeOwn:        "OwnPlaceCounts",
	model.TwoAtANumber:         "OneLeaseAtANumber",
	model.LeasedPlaceBlocks:    "LeasedNumbersAndPermits",
	model.PlaceHidesWaiter:     "NotifyServesTheWorker",
	model.CleanEndKeepsPlace:   "CleanEndDeletesTheNumber",
	model.AbandonEndsPlace:     "PlaceOutlivesTheLease",
	model.DeletedSleepOn:       "NotifyWakesTheDeleted",
	model.GivenUpTakesAll:      "PlaceIsGivenUpAlone",
	model.GraceStartsAtReserve: "GraceNeedsARefusedClaim",
	model.GraceStartsAtLook:    "GraceNeedsARefusedClaim",
	model.GraceStartsAtWaiter:  "GraceNeedsARefusedClaim",
	model.GraceStartsAtLeased:  "GraceNeedsARefusedClaim",
	model.GraceWhileHeld:       "GraceNeedsRoom",
	model.GraceRounded:         "GraceIsNoLongerThanThePlace",
	model.GraceNotSetAnew:      "ReservingStartsTheGraceAnew",
	model.GraceForEach:         "UnusedPlacesCostOneGrace",
	model.GraceOutlastsGrant:   "GrantStartsTheCountAnew",
	model.GraceOutlastsQueue:   "GraceNeedsARefusedClaim",
	model.ClaimClearsGrace:     "ClaimSetsTheGrace",
	model.GraceSetTooEarly:     "ClaimSetsTheGrace",
	model.PushSetsNoGrace:      "NotifySetsTheGrace",
	model.LeftOfPlaces:         "LeftIsUntilALeaseEnds",
	model.KeepWakesOne:         "NotifyWakesTheAnswered",
	model.StoppedIsWoken:       "NotifyStops",
	model.PushedForEver:        "PushedGrantExpires",
	model.PushedBriefly:        "PushedGrantExpires",
	model.PushedPastItsTTL:     "WaitersGrantIsALease",
	model.UnreachableLeaves:    "UnreachableWaiterKeepsItsNumber",
	model.RelayedIsSkipped:     "RelayedWaiterIsNotOvertaken",
	model.RelayedIsForgotten:   "RelayedWaiterKeepsItsNumber",
	model.RelayedIsAwaited:     "RelayedWaiterKeepsNobodyAway",
	model.KeptBlocks:           "RelayedWaiterKeepsItsNumber",
	model.KeptIsListed:         "RelayedWaiterKeepsItsNumber",
	model.KeptIsSettled:        "RelayedWaiterKeepsItsNumber",
	model.AtMostOncePushed:     "AtMostOnceIsNotPushed",
	model.PushedAfterAbandoned: "NextHolderLearnsOfTheAbandoned",
	model.MismatchPushed:       "MismatchIsNotPushed",
	model.AnsweredPushed:       "NotifyWakesTheAnswered",
	model.HeldFenceOfClaims:    "HeldAnswersHaveTheFence",
	model.HeldFenceFromCount:   "HeldAnswersHaveTheFence",
}

// Each bug is caught by the property that is meant to, by the rules of virtual time and by
// those of real time; -v prints which others catch it.
func TestMutants(t *testing.T) {
	for bug := range meant {
		t.Run(string(bug), func(t *testing.T) {
			t.Parallel()
			var catchers []string
			for _, p := range Properties() {
				if p.Name != meant[bug] && (!testing.Verbose() || p.Heavy && p.Name != "RandomSchedules") {
					continue // a mutant need not be caught by force
				}
				if catches(t, p, bug) {
					catchers = append(catchers, p.Name)
				}
			}
			if !slices.Contains(catchers, meant[bug]) {
				t.Errorf("not caught by %q; caught by %q", meant[bug], catchers)
			}
			t.Logf("caught by %d: %s", len(catchers), strings.Join(catchers, ", "))
		})
	}
}

// catches reports whether a property fails for a bug, by either rules.
func catches(t *testing.T, p Property, bug model.Bug) bool {
	virtual, err := modelHarness(bug, true).withDefaults()
	testkit.Must(t, err)
	inTime, err := modelHarness(bug, false).withDefaults()
	testkit.Must(t, err)
	caught := try(t, virtual, p).Failed()
	if f, _ := inTime.missing(p); f == "" {
		synctest.Test(t, func(t *testing.T) { caught = try(t, inTime, p).Failed() && caught })
	}
	return caught
}

// Every property has a name and a reason.
func TestProperties(t *testing.T) {
	names := map[string]bool{}
	for _, p := range Properties() {
		if p.Name == "" || p.Why == "" || p.Check == nil {
			t.Errorf("the property %q has no name, no reason or no check", p.Name)
		}
		if names[p.Name] {
			t.Errorf("two properties have the name %s", p.Name)
		}
		names[p.Name] = true
	}
	for bug, name := range meant {
		if !names[name] {
			t.Errorf("%q must be caught by %s, which is not a property", bug, name)
		}
	}
}

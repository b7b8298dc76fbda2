package storetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/storetest/internal/model"
)

// meant says which property is meant to catch which bug. Others may too.
var meant = map[model.Bug]string{
	model.SettleAnyToken:             "FormerHolderChangesNothing",
	model.LoserFrees:                 "LoserFreesNothing",
	model.FenceReused:                "FencesRise",
	model.FenceCounter:               "FencesRiseAfterWipe",
	model.RenewExpired:               "DeadLeaseStaysDead",
	model.LateRecord:                 "LateHolderWritesNoRecord",
	model.SettleExpired:              "DeadLeaseStaysDead",
	model.Barging:                    "NobodyBarges",
	model.LastFirst:                  "FirstComeFirstServed",
	model.NoHandOver:                 "HandOverInTheSameStep",
	model.WaiterForgotten:            "FirstComeFirstServed",
	model.NoWakeUp:                   "NotifyWakesTheNext",
	model.KeyTruncated:               "KeysAreDistinct",
	model.KeyFolded:                  "KeysAreDistinct",
	model.KeyTrimmed:                 "KeysAreDistinct",
	model.KeyEndsAtNUL:               "KeysAreDistinct",
	model.NamespacesMerged:           "KeysAreDistinct",
	model.ClientClock:                "ClientsClocksDoNotMatter",
	model.ClaimNotIdempotent:         "ClaimIsIdempotent",
	model.ClaimKeepsTTL:              "ClaimAgainExtendsTheLease",
	model.NeverExpires:               "LeaseEndsOnTime",
	model.ExpiresEarly:               "LeaseEndsOnTime",
	model.MismatchIgnored:            "MismatchWhileRunning",
	model.MismatchHarms:              "MismatchWhileRunning",
	model.PermitsOffByOne:            "PermitsAreCounted",
	model.PermitsUnagreed:            "PermitsMustAgree",
	model.TornRecord:                 "RecordAndLeaseEndInOneStep",
	model.RecordCut:                  "RecordIsReadWhole",
	model.RecordStays:                "RetentionEnds",
	model.MaxAgeIgnored:              "MaxAgeIsHonoured",
	model.LockHarmsRecord:            "LocksIgnoreRecords",
	model.KeepNotIdempotent:          "KeepTwice",
	model.OfferNeverLapses:           "UnconfirmedTurnLapses",
	model.OfferAbandons:              "UnconfirmedTurnLapses",
	model.PlaceStays:                 "DeadPlaceIsSkipped",
	model.ReservedIgnored:            "ReservedPlaceBlocks",
	model.ReservedGranted:            "ReservedPlaceIsNotGranted",
	model.TakeOver:                   "AtMostOnceBecomesUnknown",
	model.AbandonedUnreported:        "AbandonmentIsCounted",
	model.AttemptsNotReset:           "CleanEndResetsTheCount",
	model.ProgressLeaks:              "ProgressDiesWithACleanEnd",
	model.ProgressDropped:            "ProgressIsHandedOn",
	model.KeepsSlices:                "NothingOfTheCallersIsKept",
	model.BatchFails:                 "InvalidClaimsFailAlone",
	model.BatchMerges:                "SameKeyInOneBatch",
	model.LookJoins:                  "LookChangesNothing",
	model.ResolveAny:                 "ResolveGivesTheRecord",
	model.PruneLive:                  "PruneRemovesWhatEnded",
	model.EvictStrands:               "EvictEndsLeases",
	model.KeepLeavesWaiters:          "KeepAnswersWaiters",
	model.EvictAbandons:              "EvictEndsLeases",
	model.ForgetEvicts:               "ForgetLetsTheNextRun",
	model.BatchSorted:                "LargeBatch",
	model.AskingMovesBack:            "FirstComeFirstServed",
	model.PlaceNotProlonged:          "DeadPlaceIsSkipped",
	model.RenewOnlyExtends:           "RenewSetsTheEnd",
	model.DeadLeaseReclaimed:         "DeadLeaseIsNotClaimedAgain",
	model.TurnCleans:                 "TurnIsGivenUp",
	model.AgreementStays:             "PermitsMustAgree",
	model.UnknownForgotten:           "UnknownIsForEver",
	model.AbandonedForgotten:         "AbandonmentIsRemembered",
	model.MismatchJoins:              "MismatchTakesNoPlace",
	model.ProgressStops:              "ProgressIsPassedOn",
	model.RedeemStrands:              "ReservedPlaceBlocksPermits",
	model.RedeemTwice:                "PlaceIsRedeemedOnce",
	model.PlaceLost:                  "PlaceStandsAgain",
	model.PlaceReturnsLast:           "PlaceStandsAgain",
	model.PlaceKeepsItsEnd:           "PlaceStandsAgainForAsLong",
	model.ReleaseLeavesPlace:         "CleanEndGivesThePlaceUp",
	model.TakenPlaceBlocks:           "TakenPlacesAndPermits",
	model.TakenPlaceJoins:            "TakenPlaceJoinsNoQueue",
	model.TakenPlaceEnds:             "TakenPlaceIsGivenUp",
	model.AnsweredPlaceStands:        "AnsweredRedeemerGivesThePlaceUp",
	model.ReservedNotWoken:           "NotifyWakesTheRedeemer",
	model.ToldFenceOther:             "GrantIsTold",
	model.ToldForEver:                "ToldGrantLapses",
	model.ToldBriefly:                "ToldGrantLapses",
	model.ToldLapseForgotten:         "ToldGrantLapses",
	model.ToldOnly:                   "ToldGrantIsALease",
	model.ToldWithoutLease:           "ToldGrantIsALease",
	model.ToldWithoutFingerprint:     "ToldGrantIsALease",
	model.ToldToAll:                  "GrantIsTold",
	model.ToldToAnybody:              "WakeUpsAreNoGrants",
	model.AtMostOnceTold:             "AtMostOnceIsNotTold",
	model.HeirTold:                   "HeirHearsOfTheAbandoned",
	model.ClashTold:                  "ClashIsNotTold",
	model.ReservedTold:               "ReservedPlaceIsNotTold",
	model.StoppedIsTold:              "GrantsStop",
	model.HeldWithoutFence:           "HeldAnswersHaveTheFence",
	model.HeldFenceOfClaims:          "HeldAnswersHaveTheFence",
	model.HeldFenceFromCount:         "HeldFenceAfterWipe",
	model.HeldFenceAhead:             "GrantIsTold",
	model.GivenUpRedeemerTold:        "GivenUpRedeemerIsNotGranted",
	model.FirstRedeemerWaits:         "OnlyTheLastRedeemerWaits",
	model.CalledBackIsTold:           "OnlyTheLastRedeemerWaits",
	model.RedeemerWaitsOn:            "RedeemersWaitEnds",
	model.RedeemerUnasked:            "ReservedPlaceIsNotTold",
	model.ToldRedeemerLosesPlace:     "ToldRedeemersPlaceStandsAgain",
	model.ToldRedeemerWaitsOn:        "ToldRedeemersPlaceStandsAgain",
	model.ToldRedeemersHoldIgnored:   "ToldRedeemersPlaceStandsAgain",
	model.ToldRedeemerKeepsPlace:     "RedeemerLeavesItsOwnPlace",
	model.AnsweredRedeemerTold:       "RedeemerThatMustAskIsWoken",
	model.WaiterTakesPlace:           "PlaceStaysWithItsLease",
	model.RedeemerToldByPlace:        "WaitingRedeemerHasItsTurn",
	model.OwnTurnMismatch:            "OwnTurnIsNoMismatch",
	model.UndoAbandons:               "UndoneAsIfNotGranted",
	model.UndoCleans:                 "UndoneAsIfNotGranted",
	model.UndoForgetsProgress:        "UndoneAsIfNotGranted",
	model.HoldIgnored:                "DeadPlacesCostTheirHoldsInTurn",
	model.HoldFromTheReservation:     "HoldCountsFromTheFirstRefusal",
	model.HoldFromTheTurn:            "HoldIsNotCountedUnasked",
	model.HoldStartsAtReserve:        "HoldIsNotCountedUnasked",
	model.HoldStartsAtLook:           "HoldIsNotCountedUnasked",
	model.HoldStartsAtTryAlone:       "HoldCountsFromTheFirstRefusal",
	model.HoldStartsAtQueueAlone:     "HoldCountsFromTheFirstRefusal",
	model.HoldStartsAtStrangersAlone: "HoldIsTheFirstPlaces",
	model.HoldStartsAtTaken:          "HoldIsNotCountedUnasked",
	model.HoldWhileHeld:              "HoldNeedsAFreePermit",
	model.HoldNeedsNoHolder:          "HoldNeedsAFreePermit",
	model.HoldOfAll:                  "HoldIsTheFirstPlaces",
	model.HoldRestarts:               "HoldCountsFromTheFirstRefusal",
	model.HoldOutlastsPlace:          "HoldIsNoLongerThanThePlace",
	model.HoldRounded:                "HoldIsNoLongerThanThePlace",
	model.HoldOutlastsProlonging:     "ProlongingStartsAHoldAnew",
	model.HoldOnceProlonged:          "ProlongingStartsAHoldAnew",
	model.HoldNotSetAnew:             "ProlongingSetsTheHold",
	model.HoldSetByTry:               "ProlongingSetsTheHold",
	model.HoldOutlastsTheLease:       "StandingAgainStartsAHoldAnew",
	model.HoldOnceTaken:              "StandingAgainStartsAHoldAnew",
	model.RedeemersHoldIgnored:       "RedeemerSetsTheHold",
	model.RedeemersHoldAlways:        "RedeemerSetsTheHold",
	model.RedeemersHoldTooEarly:      "RedeemerSetsTheHold",
	model.HoldToldLate:               "HoldsInABatch",
	model.HoldNotTold:                "HoldCountsFromTheFirstRefusal",
	model.IdleNotTold:                "IdleKeysAreTold",
	model.IdleWhileHeld:              "IdleKeysAreTold",
	model.IdleNeedsNoHolder:          "IdlePermitsAreTold",
	model.IdleForTheTaken:            "IdlePermitsAreTold",
	model.IdleOnce:                   "IdleKeysAreTold",
	model.LeftOfTheTaker:             "TakenPlaceIsToldWhatIsLeft",
}

// Each bug is caught by the property that is meant to; -v tells which others catch it.
func TestMutants(t *testing.T) {
	t.Logf("%d mutants", len(model.Bugs))
	for _, bug := range model.Bugs {
		t.Run(string(bug), func(t *testing.T) {
			t.Parallel()
			h, err := modelHarness(bug, true).withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			var catchers []string
			for _, p := range Properties() {
				if p.Name != meant[bug] && (!testing.Verbose() || p.Heavy && p.Name != "RandomSchedules") {
					continue // a mutant need not be caught by force
				}
				if r := try(t, h, p); r.Failed() {
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

// Every property has a name and a reason, and every bug one that is meant to
// catch it.
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
	for _, bug := range model.Bugs {
		if !names[meant[bug]] {
			t.Errorf("no property is meant to catch %q", bug)
		}
	}
	if len(meant) != len(model.Bugs) {
		t.Errorf("%d bugs are meant to be caught, there are %d", len(meant), len(model.Bugs))
	}
}

package waiters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/slots"
)

const (
	handoffLimit = 5 * time.Second // time limit of one piece of work on the slots of a pool
	maxRounds    = 20              // maximum number of successive rounds (exchanges with the semaphore) in one piece of work

	// oldOffer is the maximum age of an offer that comes from the latest call to the semaphore. An older offer was made by an earlier call whose
	// reply was lost.
	oldOffer = 100 * time.Millisecond
)

// Offers carries out the offers of free slots. It notifies the devices and sends the outcomes to the semaphore. The semaphore then offers
// unused slots to the next waiters.
type Offers struct {
	pools     *Pools
	relay     *Relay
	forecast  *forecast
	handoffs  *Handoffs
	semaphore Semaphore
	waker     Waker // if nil, no device is reached by push
	rounds    *mergedWork[offerRound]
	now       func() time.Time
}

// offerRound is one exchange with the semaphore about a pool. First, the devices are notified of offers. Then the outcomes of the offers and
// other updates are sent to the semaphore.
type offerRound struct {
	offers  []timedOffer
	updates []slots.Update
}

// timedOffer is an offer with the time at which its slot became free. The time is zero if it is unknown.
type timedOffer struct {
	slots.Offer
	freed time.Time
}

func (r offerRound) add(other offerRound) offerRound {
	return offerRound{offers: append(r.offers, other.offers...), updates: append(r.updates, other.updates...)}
}

// NotifyOfOffers notifies the devices to which slots are offered, in the background. The slots became free at freedAt. If freedAt is zero, this
// time is unknown.
func (o *Offers) NotifyOfOffers(pool string, offers []slots.Offer, freedAt time.Time) {
	if len(offers) > 0 {
		o.rounds.start(pool, offerRound{offers: o.newTimedOffers(offers, freedAt)})
	}
}

// SendDeviceUpdate sends, in the background, an update about the device to the queues of pools.
func (o *Offers) SendDeviceUpdate(device string, updateKind slots.UpdateKind, pools []string) {
	for _, pool := range pools {
		o.rounds.start(pool, offerRound{updates: []slots.Update{{Kind: updateKind, Device: device}}})
	}
}

// RemoveWaitersOfBatch removes the devices that wait with a task of the batch from the queue of its pool, in the background. If many devices
// wait, some of them stay in the queue until they report, but no slot is offered to them.
func (o *Offers) RemoveWaitersOfBatch(pool string, batchID int64) {
	o.rounds.start(pool, offerRound{updates: []slots.Update{{Kind: slots.BatchLeft, Batch: batchID}}})
}

// AdmitWaitersOfBatch undoes RemoveWaitersOfBatch, so that devices may wait with tasks of the batch again. It works in the background.
func (o *Offers) AdmitWaitersOfBatch(pool string, batchID int64) {
	o.rounds.start(pool, offerRound{updates: []slots.Update{{Kind: slots.BatchOpened, Batch: batchID}}})
}

// OfferedPools returns the elements of pools in which a slot is offered to the device.
func (o *Offers) OfferedPools(ctx context.Context, pools []string, device string) ([]string, error) {
	return o.semaphore.PoolsWithOffer(ctx, o.pools.PoolsWithWaiters(pools), device)
}

// newTimedOffers returns each offer with the time at which its slot became free. This is freedAt, or the time of the offer if an earlier call to
// the semaphore made the offer.
func (o *Offers) newTimedOffers(offers []slots.Offer, freedAt time.Time) []timedOffer {
	now, timed := o.now(), make([]timedOffer, len(offers))
	for i, offer := range offers {
		timed[i] = timedOffer{Offer: offer, freed: freedAt}
		if made := now.Add(-offer.Age); made.Before(freedAt) || freedAt.IsZero() && offer.Age > oldOffer {
			timed[i].freed = made
		}
	}
	return timed
}

// runRounds carries out rounds, beginning with the round `first`. If a device cannot use its offer, the semaphore offers the slot to the next
// waiter, and runRounds carries out another round with these offers. It ends after maxRounds rounds.
func (o *Offers) runRounds(ctx context.Context, pool string, first offerRound) error {
	ctx, cancel := context.WithTimeout(ctx, handoffLimit)
	defer cancel()
	var failed error
	for range maxRounds {
		outcomes, err := o.notifyDevices(ctx, pool, first.offers)
		failed = errors.Join(failed, err)
		updates := append(first.updates, outcomes...)
		if len(updates) == 0 {
			break
		}
		asked := o.now()
		queue, err := o.semaphore.OfferSlots(ctx, pool, o.pools.Pace(pool), updates)
		if err != nil {
			return errors.Join(failed, fmt.Errorf("updating the queue of pool %s: %w", pool, err))
		}
		if len(queue.Offers) == 0 {
			break
		}
		first = offerRound{offers: o.newTimedOffers(queue.Offers, asked)}
	}
	return failed
}

// notifyDevices notifies the devices that can use their offers. It returns the outcomes of the offers, as far as they are known.
func (o *Offers) notifyDevices(ctx context.Context, pool string, offers []timedOffer) ([]slots.Update, error) {
	var pushed, parked []timedOffer
	for _, offer := range offers {
		switch offer.Reach {
		case slots.ReachPush:
			pushed = append(pushed, offer)
		case slots.ReachPark:
			parked = append(parked, offer)
		}
	}
	outcomes, unsent := o.wakeParked(ctx, pool, parked)
	more, failed := o.pushWakes(ctx, pool, pushed)
	return append(outcomes, more...), errors.Join(failed, unsent)
}

// wakeParked wakes the parked reports of the devices of offers. If a report is not parked at this replica, wakeParked sends a message to the
// other replicas and returns no outcome. Then the offer counts as not sent, because the other replicas do not answer the message.
func (o *Offers) wakeParked(ctx context.Context, pool string, offers []timedOffer) (outcomes []slots.Update, err error) {
	calls, now := make([]parked.WakeMessage, len(offers)), o.now()
	for i, offer := range offers {
		calls[i] = parked.WakeMessage{Device: offer.Device, Pool: pool}
		if !offer.freed.IsZero() {
			calls[i].Age = max(now.Sub(offer.freed), 1)
		}
	}
	elsewhere, err := o.relay.Wake(ctx, calls)
	for i, offer := range offers {
		if !slices.Contains(elsewhere, calls[i]) {
			outcomes = append(outcomes, slots.Update{Kind: slots.OfferSent, Device: offer.Device, Offer: offer.ID})
		}
	}
	return outcomes, err
}

// pushWakes sends a wake to each device of offers that can start a task of the pool now. It returns the outcome of each offer. To find out which
// devices can start a task, it reads the ledger once. So it does not wake a device, or reserve a slot, in vain.
func (o *Offers) pushWakes(ctx context.Context, pool string, offers []timedOffer) ([]slots.Update, error) {
	if len(offers) == 0 || o.waker == nil {
		return nil, nil
	}
	began, names := o.now(), make([]string, len(offers))
	for i, offer := range offers {
		names[i] = offer.Device
	}
	kinds, err := o.forecast.predictOutcomes(ctx, pool, names)
	if err != nil {
		return nil, err
	}
	outcomes := make([]slots.Update, len(offers))
	for i, offer := range offers {
		outcomes[i] = slots.Update{Kind: kinds[i], Device: offer.Device, Offer: offer.ID}
		if kinds[i] == slots.OfferSent {
			o.wakeDevice(ctx, pool, offer, began)
		}
	}
	return outcomes, nil
}

func (o *Offers) wakeDevice(ctx context.Context, pool string, offer timedOffer, pushBegan time.Time) {
	now := o.now()
	o.waker.Wake(devices.ID(offer.Device), offer.Left)
	if !offer.freed.IsZero() {
		o.handoffs.RecordDuration(pool, now.Sub(offer.freed))
		steps := o.handoffs.NewSteps(ctx, offer.freed)
		steps.RecordStep("called", pushBegan)
		steps.RecordStep("read", now)
		steps.WriteToLog(pool, "push")
	}
}

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

	// oldOffer is the age above which an offer counts as old: an earlier call to the semaphore made it, but the reply was lost or the
	// replica failed.
	oldOffer = 100 * time.Millisecond
)

// Offers carries out the offers of free slots: it notifies the devices and sends the outcomes
// to the semaphore, which offers the unused slots to the next waiters.
type Offers struct {
	pools     *Pools
	relay     *Relay
	forecast  *forecast
	handoffs  *Handoffs
	semaphore Semaphore
	waker     Waker // if nil, no device is reached by push
	rounds    *mergedWork[round]
	now       func() time.Time
}

// round is one exchange about the offers of a pool: devices are notified of offers, then the
// semaphore is sent the outcomes of the offers and other updates about waiters.
type round struct {
	offers  []timedOffer
	updates []slots.Update
}

// timedOffer is an offer (a slot that is reserved for a waiter) with the time at which the slot
// became free, by this process's clock. If freed is zero, the slot was found free; no holder has
// just released it.
type timedOffer struct {
	slots.Offer
	freed time.Time
}

// add returns the round with the offers and updates of r and of other.
func (r round) add(other round) round {
	return round{offers: append(r.offers, other.offers...), updates: append(r.updates, other.updates...)}
}

// Send notifies the devices of offers in the background. The slots became free at freedAt; if freedAt is zero, the time is unknown.
func (o *Offers) Send(pool string, offers []slots.Offer, freedAt time.Time) {
	if len(offers) > 0 {
		o.rounds.start(pool, round{offers: o.addTimes(offers, freedAt)})
	}
}

// Update sends, in the background, an update of this kind about the device to the queues of pools. In these pools, the update applies to
// every offer to the device.
func (o *Offers) Update(device string, kind slots.UpdateKind, pools []string) {
	for _, pool := range pools {
		o.rounds.start(pool, round{updates: []slots.Update{{Kind: kind, Device: device}}})
	}
}

// RemoveBatch removes the devices that wait with a task of the batch from the queue of its pool in the background, when none of its tasks
// may start any more. If many wait, some remain in the queue until they report, but no slot is offered to them.
func (o *Offers) RemoveBatch(pool string, batch int64) {
	o.rounds.start(pool, round{updates: []slots.Update{{Kind: slots.BatchLeft, Batch: batch}}})
}

// AdmitBatch lets the devices that still wait with a task of the batch get slots again, after RemoveBatch, in the background.
func (o *Offers) AdmitBatch(pool string, batch int64) {
	o.rounds.start(pool, round{updates: []slots.Update{{Kind: slots.BatchOpened, Batch: batch}}})
}

// OfferedPools returns the pools in which a slot is offered to the device. It searches only in the given pools.
func (o *Offers) OfferedPools(ctx context.Context, pools []string, device string) ([]string, error) {
	return o.semaphore.PoolsWithOffer(ctx, o.pools.FilterWaiting(pools), device) //nolint:wrapcheck // the semaphore says what it was doing
}

// addTimes adds to each offer the time at which its slot became free. This is freedAt. But if an earlier call to the semaphore made the
// offer, it is the time at which the offer was made.
func (o *Offers) addTimes(offers []slots.Offer, freedAt time.Time) []timedOffer {
	now, timed := o.now(), make([]timedOffer, len(offers))
	for i, offer := range offers {
		timed[i] = timedOffer{Offer: offer, freed: freedAt}
		if made := now.Add(-offer.Age); made.Before(freedAt) || freedAt.IsZero() && offer.Age > oldOffer {
			timed[i].freed = made
		}
	}
	return timed
}

// runRounds carries out the round first. Then it carries out the rounds of the offers that follow from it: in the call that reports the
// outcome of an unused offer, the semaphore offers the slot to the next waiter. It carries out at most maxRounds rounds.
func (o *Offers) runRounds(ctx context.Context, pool string, first round) error {
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
		first = round{offers: o.addTimes(queue.Offers, asked)}
	}
	return failed
}

// notifyDevices notifies the devices that can use their offers. It returns the outcomes of the
// offers for which the outcome is known.
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
	more, failed := o.push(ctx, pool, pushed)
	return append(outcomes, more...), errors.Join(failed, unsent)
}

// wakeParked wakes the parked reports of the devices of offers, which are then decided like any other report. It returns no outcome for a
// report that is not parked here: another replica may have the report, but no reply shows this, so the offer counts as not sent.
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

// push wakes the devices of offers that can start a task of the pool now, and returns the outcome of each offer. One read of the ledger
// shows which devices can use their offers. This avoids useless wake-ups, and slots that stay reserved for devices that cannot use them.
func (o *Offers) push(ctx context.Context, pool string, offers []timedOffer) ([]slots.Update, error) {
	if len(offers) == 0 || o.waker == nil {
		return nil, nil
	}
	began, names := o.now(), make([]string, len(offers))
	for i, offer := range offers {
		names[i] = offer.Device
	}
	kinds, err := o.forecast.outcomes(ctx, pool, names)
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

// wakeDevice notifies a device by push that the slot of offer is reserved for it. pushBegan is the time at which the caller, push, began;
// it is used only for the durations in the log.
func (o *Offers) wakeDevice(ctx context.Context, pool string, offer timedOffer, pushBegan time.Time) {
	now := o.now()
	o.waker.Wake(devices.ID(offer.Device), offer.Left)
	if !offer.freed.IsZero() {
		o.handoffs.Record(pool, now.Sub(offer.freed))
		steps := o.handoffs.Steps(ctx, offer.freed)
		steps.Done("called", pushBegan)
		steps.Done("read", now)
		steps.Log(pool, "push")
	}
}

package operators_test

import (
	"github.com/fleetslots/dispatcher/operators"
)

func (c *checkedClient) checkLimitSets() {
	c.Helper()
	set := operators.LimitSetSettings{Limits: []operators.Policy{
		{Name: "per-phone", Per: "facts.phone", Algorithm: "sliding", Windows: []operators.PolicyWindow{{Max: 3, PerMS: 60_000}}},
	}}
	put, err := c.Limits.Put(c.ctx, "sms", set)
	c.expectResponse("Put limit set", put, err)
	read, err := c.Limits.Get(c.ctx, "sms")
	c.expectResponse("Limit set", read, err)
	c.expectResponse("Limit sets", collectAll(c.T, c.Limits.List(c.ctx, operators.All{})), nil)
	facts := map[string]string{"phone": "+49"}
	take := operators.Take{ID: "1", Facts: facts, Cost: 2}
	taken, err := c.Limits.Take(c.ctx, "sms", take)
	c.expectResponse("Take", taken, err)
	again, err := c.Limits.Take(c.ctx, "sms", take)
	c.expectResponse("Take again", again, err)
	each, err := c.Limits.TakeEach(c.ctx, "sms", []operators.Take{{Facts: facts}, {Facts: facts}})
	c.expectResponse("Take each", operators.TakenList{Takes: each}, err)
	returned, err := c.Limits.Return(c.ctx, "sms", operators.Take{ID: "1", Facts: facts, Cost: 1})
	c.expectResponse("Return", operators.Returned{Returned: returned}, err)
	peeked, err := c.Limits.Peek(c.ctx, "sms", operators.Take{Facts: facts})
	c.expectResponse("Peek", peeked, err)
	if !taken.Allowed || !again.Repeated || len(each) != 2 || !each[0].Allowed || each[1].Allowed || returned != 1 || !peeked.Allowed {
		c.Errorf("%+v, %+v, %+v, %d, %+v", taken, again, each, returned, peeked)
	}
	used, err := c.Limits.SubjectUse(c.ctx, "sms", facts)
	c.expectResponse("UseOf of facts", operators.Usage{Usage: used}, err)
	highest, err := c.Limits.HighestUse(c.ctx, "sms", 5)
	c.expectResponse("HighestUse of a set", operators.Usage{Highest: highest}, err)
	if len(used) != 1 || used[0].Used != 2 || len(highest) != 1 || highest[0].Subject != used[0].Subject || highest[0].Used != 2 {
		c.Errorf("used %+v, highest %+v", used, highest)
	}
	if err := c.Limits.Delete(c.ctx, "sms"); err != nil {
		c.Error(err)
	}
}

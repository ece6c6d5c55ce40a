package api

// LargeBodies is how many have their turn.
func (a *API) LargeBodies() int { return a.large.Taken() }

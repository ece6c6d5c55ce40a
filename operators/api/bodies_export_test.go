package api

// LargeBodies returns how many large bodies are being read.
func (a *API) LargeBodies() int { return a.largeTurns.Running() }

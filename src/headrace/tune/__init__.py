"""Searches settings in a twin and says which of them to run: a function of the problem and the runs so far.

goals, space   traffic and server      ->  what to reach, and what may be tried
twin, explore  settings, a pace        ->  candidates, hundreds of simulations
decide         problem + runs          ->  the next run, or a Conclusion (proof, levers, conclude)
drive          problem + judge         ->  Conclusion, by asking for runs until there is one
curves, pools  the answer              ->  what the twin says around it
grade, verdict a run; repeated runs    ->  the numbers that are compared, a gain with its uncertainty
traffic        a server's speed        ->  a load near its knee
"""
